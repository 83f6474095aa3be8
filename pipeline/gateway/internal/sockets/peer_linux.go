package sockets

import (
	"net"

	"golang.org/x/sys/unix"
)

// PeerUser returns the user at the other end of a Unix socket, as it was when it listened, or connected.
func PeerUser(conn net.Conn) (user int, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var found *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		found, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(found.Uid), nil
}
