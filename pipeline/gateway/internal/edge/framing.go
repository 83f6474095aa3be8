package edge

import (
	"bytes"
	"strconv"
	"sync/atomic"
)

// framing reads along the bytes of an HTTP/1 connection, and tells which of its requests have a head that
// two servers
// may read in two ways. Package http forgets that by the time its handler is called: it drops a
// Content-Length beside
// chunks, and takes line ends without CR. Request smuggling, a second request that only one of two servers
// sees, needs such a head.
type framing struct {
	state     int
	line      []byte // what has come of a line whose end has not
	size      int    // of the head
	heads     int64  // that have begun
	length    int64  // of the body, or of the chunk
	lengths   int    // how many of its headers say that
	isChunked bool   // it comes in chunks
	isOld     bool   // it is of HTTP/1.0
	fault     string // of the head

	faulty atomic.Int64 // which request it is; 0: none
	why    string       // written before faulty
}

// States of a framing.
const (
	inHead = iota
	inBody
	inChunkSize
	inChunk
	inTrailers
	isLost // what follows is for package http to judge: it hangs up, or it is no HTTP/1
)

const chunkEndBytes = 2 // CR LF behind the data of a chunk

// feed reads what has come.
func (f *framing) feed(data []byte) {
	for len(data) > 0 && f.state != isLost {
		if f.state == inBody || f.state == inChunk {
			taken := min(f.length, int64(len(data)))
			data = data[taken:]
			if f.length -= taken; f.length == 0 && f.state == inBody {
				f.begin()
			} else if f.length == 0 {
				f.state = inChunkSize
			}
			continue
		}
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			f.line = append(f.line, data...)
			f.lose(len(f.line) > maxHeadBytes+headTolerance)
			return
		}
		line := data[:end+1]
		if len(f.line) > 0 {
			f.line = append(f.line, line...)
			line = f.line
		}
		data = data[end+1:]
		f.take(line)
		f.line = f.line[:0]
	}
}

// begin waits for the next head.
func (f *framing) begin() {
	f.state, f.size, f.length, f.lengths, f.isChunked, f.isOld, f.fault = inHead, 0, 0, 0, false, false, ""
}

func (f *framing) lose(isSo bool) {
	if isSo {
		f.state, f.line = isLost, nil
	}
}

// take reads a line, of a head, of chunks or of trailers.
func (f *framing) take(line []byte) {
	text, hasCR := bytes.CutSuffix(line[:len(line)-1], []byte("\r"))
	switch f.state {
	case inHead:
		f.takeOfHead(text, len(line), hasCR)
	case inChunkSize:
		size, _, _ := bytes.Cut(text, []byte(";"))
		length, err := strconv.ParseInt(string(bytes.TrimRight(size, " \t")), 16, 62)
		f.lose(err != nil || length < 0)
		if err == nil && length > 0 {
			f.state, f.length = inChunk, length+chunkEndBytes
		} else if err == nil {
			f.state = inTrailers
		}
	case inTrailers:
		if len(text) == 0 {
			f.begin()
		}
	}
}

func (f *framing) takeOfHead(text []byte, size int, hasCR bool) {
	isFirst := f.size == 0
	f.size += size
	f.lose(f.size > maxHeadBytes+headTolerance)
	if !hasCR {
		f.fault = "a line of its head ends without CR"
	}
	switch {
	case isFirst:
		f.heads++
		f.takeFirst(text)
	case len(text) == 0:
		f.ended()
	case text[0] == ' ' || text[0] == '\t':
		f.fault = "a header field has two lines"
	default:
		name, value, _ := bytes.Cut(text, []byte(":"))
		f.takeField(name, bytes.Trim(value, " \t"))
	}
}

// takeFirst reads the first line of a head.
func (f *framing) takeFirst(text []byte) {
	switch version := text[bytes.LastIndexByte(text, ' ')+1:]; string(version) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		f.isOld = true
	case "HTTP/2.0":
		f.lose(true)
	default:
		f.fault = "its version is neither HTTP/1.1 nor HTTP/1.0"
	}
}

func (f *framing) takeField(name, value []byte) {
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		length, err := strconv.ParseInt(string(value), 10, 64)
		f.lose(err != nil || length < 0)
		f.length = length
		f.lengths++
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		f.isChunked = true
	}
}

// ended looks at a head that is complete.
func (f *framing) ended() {
	switch {
	case f.isChunked && f.lengths > 0:
		f.fault = "it has a Content-Length beside chunks"
	case f.isChunked && f.isOld:
		f.fault = "it has chunks of HTTP/1.0, which knows none"
	case f.lengths > 1:
		f.fault = "it has two Content-Lengths"
	}
	if f.fault != "" && f.faulty.Load() == 0 {
		f.why = f.fault
		f.faulty.Store(f.heads)
	}
	switch {
	case f.state == isLost:
	case f.isChunked:
		f.state = inChunkSize
	case f.length > 0:
		f.state = inBody
	default:
		f.begin()
	}
}

// whyNot returns what is wrong with the head of a request, by its number on the connection, from 1; "":
// nothing.
func (f *framing) whyNot(number int64) string {
	if faulty := f.faulty.Load(); faulty == 0 || number < faulty {
		return ""
	}
	return f.why
}
