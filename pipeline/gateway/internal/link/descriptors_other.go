//go:build !linux

package link

import (
	"net"
	"os"
)

// descriptors is a connection: descriptors are passed on Linux only.
type descriptors struct{ net.Conn }

func (*descriptors) memory() (file, held *os.File) { return nil, nil }
