package link

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// mostDescriptors come along with a greeting.
const mostDescriptors = 1

// descriptors is a connection whose first bytes may come with a descriptor.
type descriptors struct {
	net.Conn
	hasRead bool
	came    *os.File
}

// Read reads, the first time with what comes along.
func (d *descriptors) Read(buffer []byte) (int, error) {
	local, isLocal := d.Conn.(*net.UnixConn)
	if d.hasRead || !isLocal {
		return d.Conn.Read(buffer)
	}
	d.hasRead = true
	beside := make([]byte, unix.CmsgSpace(4*mostDescriptors))
	n, size, _, _, err := local.ReadMsgUnix(buffer, beside) // closed on exec
	if n <= 0 && err == nil {
		err = io.EOF
	}
	if n = max(n, 0); err != nil {
		return n, err
	}
	messages, failed := unix.ParseSocketControlMessage(beside[:size])
	if failed != nil || len(messages) == 0 {
		return n, err
	}
	if found, failed := unix.ParseUnixRights(&messages[0]); failed == nil && len(found) == mostDescriptors {
		d.came = os.NewFile(uintptr(found[0]), "memory")
	}
	return n, err
}

// only returns what came along; nil: nothing.
func (d *descriptors) only() *os.File { return d.came }
