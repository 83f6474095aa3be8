//go:build !linux

package sockets

import (
	"math"
	"net"
	"os"
	"syscall"
)

// LimitUnsent leaves the system's own limit.
func LimitUnsent(net.Conn) {}

// TakeLast leaves what nobody has taken to the system.
func TakeLast(net.Listener) {}

// MostOpenFiles is said by nobody here.
func MostOpenFiles() int { return math.MaxInt32 }

// PeerUser takes the other end for ours: only Linux tells.
func PeerUser(net.Conn) (user int, err error) { return os.Geteuid(), nil }

// limitUnacknowledged leaves the system's own limit: only Linux has a portable name for another.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
