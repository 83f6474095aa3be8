package link

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// mostDescriptors come along with a greeting: the memory, and what is closed when it is unmapped.
const mostDescriptors = 2

// descriptors is a connection whose first bytes may come with descriptors.
type descriptors struct {
	net.Conn
	hasRead bool
	came    []*os.File
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
	found, _ := unix.ParseUnixRights(&messages[0])
	for _, each := range found {
		d.came = append(d.came, os.NewFile(uintptr(each), "memory"))
	}
	return n, err
}

// memory returns the memory that came along, and what is to be closed when it is unmapped; nil: nothing came.
func (d *descriptors) memory() (file, held *os.File) {
	if len(d.came) == mostDescriptors {
		return d.came[0], d.came[1]
	}
	for _, each := range d.came {
		_ = each.Close()
	}
	return nil, nil
}
