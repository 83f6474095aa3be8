//go:build !linux

package sockets

import (
	"math"
	"net"
	"syscall"
)

// LimitUnsent leaves the system's own limit.
func LimitUnsent(net.Conn) {}

// TakeLast leaves what nobody has taken to the system.
func TakeLast(net.Listener) {}

// MostOpenFiles is said by nobody here.
func MostOpenFiles() int { return math.MaxInt32 }

// limitUnacknowledged leaves the system's own limit: only Linux has a portable name for another.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
