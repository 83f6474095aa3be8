package main

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	unsentBytes = 128 << 10

	lookEvery = time.Millisecond // for connections that nobody has taken
	mostLooks = 200
)

// dropSYN is a filter of segments: those that ask for a new connection are dropped, the others pass.
var dropSYN = []syscall.SockFilter{
	{Code: 0x30, K: 13}, // the flags
	{Code: 0x54, K: 0x12},
	{Code: 0x15, Jf: 1, K: 0x02}, // SYN without ACK
	{Code: 0x06, K: 0},
	{Code: 0x06, K: 0xffffffff},
}

// takeLast waits until all connections that the system has made are taken, and lets it make no more: those
// that nobody has taken when a socket is closed would be reset. Whose SYN is dropped repeats it, and finds
// nobody, or somebody else.
func takeLast(listener net.Listener) {
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

// limitUnsent keeps the system from holding megabytes for a caller that reads slowly: by what it takes
// from us we see that the caller goes on.
func limitUnsent(conn net.Conn) {
	tcp, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is gone, as whoever uses it is going to see
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
}

// mostOpenFiles returns how many descriptors this process may have.
func mostOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// memoryLimit returns the bytes that this process's control groups allow it, math.MaxInt64 for any.
func memoryLimit() int64 {
	least := int64(math.MaxInt64)
	own, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if strings.Contains(parts[1], "memory") { // version 1
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for group := filepath.Join("/", parts[2]); ; group = filepath.Dir(group) {
			least = min(least, limitIn(filepath.Join(root, group, file)))
			if group == "/" {
				break
			}
		}
	}
	return least
}

// limitIn reads a limit of a control group.
func limitIn(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return math.MaxInt64
	}
	bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || bytes <= 0 { // "max"
		return math.MaxInt64
	}
	return bytes
}
