package arena

import (
	"os"

	"golang.org/x/sys/unix"
)

func mapRegion(file *os.File, offset, size int64, isWritten bool) ([]byte, error) {
	access := unix.PROT_READ
	if isWritten {
		access |= unix.PROT_WRITE
	}
	return unix.Mmap(int(file.Fd()), offset, int(size), access, unix.MAP_SHARED)
}

func unmap(mapped []byte) { _ = unix.Munmap(mapped) }

// discard gives memory back to the system: what is read there next are zeros.
func discard(memory []byte) { _ = unix.Madvise(memory, unix.MADV_REMOVE) }
