package gatewaytest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// MemoryFile returns a nameless file of so many bytes, as a server shares it.
func MemoryFile(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memory")
	t.Cleanup(func() { _ = file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return file
}
