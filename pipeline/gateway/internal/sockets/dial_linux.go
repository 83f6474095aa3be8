package sockets

import (
	"syscall"
	"time"
)

const (
	tcpUserTimeout      = 18 // TCP_USER_TIMEOUT, which package syscall does not name
	maxUnacknowledgedMS = int(25 * time.Second / time.Millisecond)
)

// limitUnacknowledged ends a connection on which the peer has not acknowledged data for long: the
// system's own limit is a quarter of an hour, and keep-alive probes are not sent meanwhile.
func limitUnacknowledged(network, _ string, raw syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, maxUnacknowledgedMS)
	})
	if err != nil {
		return err
	}
	return failed
}
