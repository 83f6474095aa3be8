package memory

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limit returns the bytes that this process's control groups allow it, math.MaxInt64 for any.
func Limit() int64 {
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
