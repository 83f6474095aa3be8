package sockets

import (
	"math"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	unsentBytes = 128 << 10

	lookEvery = time.Millisecond // for connections that nobody has taken
	mostLooks = 200
)

// dropSYN is a filter of segments: it drops the ones that ask for a new connection, and passes the others.
var dropSYN = []syscall.SockFilter{
	{Code: 0x30, K: 13}, // the flags
	{Code: 0x54, K: 0x12},
	{Code: 0x15, Jf: 1, K: 0x02}, // SYN without ACK
	{Code: 0x06, K: 0},
	{Code: 0x06, K: 0xffffffff},
}

// TakeLast waits until all connections that the system has made are taken, and lets it make no more: untaken
// ones would be reset when the socket is closed. A client whose SYN is dropped repeats it, and finds no
// listener, or another one.
func TakeLast(listener net.Listener) {
	tcp, isTCP := listener.(*net.TCPListener)
	if !isTCP {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.AttachLsf(int(fd), dropSYN) // a system that cannot: some may be reset
	})
	for range mostLooks {
		untaken := uint32(0)
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				untaken = info.Unacked // which it is for listeners
			}
		})
		if untaken == 0 {
			return
		}
		time.Sleep(lookEvery)
	}
}

// LimitUnsent keeps the system from holding megabytes for a caller that reads slowly: by what it takes from
// us we see that the caller continues.
func LimitUnsent(conn net.Conn) {
	tcp, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed, as its user is going to notice
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
}

// MostOpenFiles returns how many descriptors this process may have.
func MostOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}
