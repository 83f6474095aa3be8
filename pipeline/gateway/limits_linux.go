package main

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	tcpNotSentLowat = 25 // TCP_NOTSENT_LOWAT, which package syscall does not name
	unsentBytes     = 128 << 10
)

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
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, unsentBytes)
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
