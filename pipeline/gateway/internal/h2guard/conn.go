// Package h2guard counts the frames of HTTP/2 that a caller sends, and disconnects a caller that sends too
// many of the cheap ones: resets, SETTINGS, PING, PRIORITY, empty DATA, WINDOW_UPDATE, CONTINUATION. The
// servers of package http and of gRPC lack such limits.
package h2guard

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"pipeline/gateway/internal/order"
)

const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	lingerFor   = 100 * time.Millisecond // for the caller to see why
	lingerBytes = 1 << 20
)

// Conn is a connection that may speak HTTP/2, without TLS: with TLS, the guard reads the decrypted bytes.
type Conn struct {
	net.Conn
	told func(reason string)

	// Of the goroutine that reads:
	mustBe     bool // HTTP/2, as its TLS has said
	isHTTP2    bool // the preface has come
	prefaceHas int  // bytes of it that have come; -1: it is something else
	in         scanner
	hasHungUp  bool
	hasCalls   bool // in what it has read last

	writing   sync.Mutex
	isLeaving bool // the caller is to get a GOAWAY, between two frames
	hasSaid   bool

	lock    sync.Mutex
	allowed allowance
	out     scanner
	counts  bool   // what we write is HTTP/2
	reason  string // to hang up
}

// New returns a guarded connection; told, if given, receives the reason why the caller was disconnected. The
// caller speaks first, unless the connection is known to be HTTP/2. It may have so many streams.
func New(conn net.Conn, isHTTP2 bool, streams int, told func(reason string)) *Conn {
	return &Conn{Conn: conn, told: told, mustBe: isHTTP2, counts: isHTTP2, allowed: newAllowance(streams, time.Now)}
}

// Read reads, and hangs up on a caller that goes too far.
func (c *Conn) Read(buffer []byte) (int, error) {
	if c.isOver() {
		return 0, io.EOF
	}
	if c.hasCalls {
		order.Keep()
	}
	n, err := c.Conn.Read(buffer)
	if n > 0 && c.isTooMuch(buffer[:n]) {
		c.hangUp()
		return 0, io.EOF
	}
	if c.mustBe && c.prefaceHas < 0 {
		return 0, io.EOF // the server would take it for HTTP/1
	}
	return n, err
}

// isTooMuch counts what has come.
func (c *Conn) isTooMuch(data []byte) bool {
	if !c.isHTTP2 {
		data = c.afterPreface(data)
		if len(data) == 0 {
			return false
		}
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.hasCalls = false
	c.in.feed(data, func(frame seen) bool {
		c.hasCalls = c.hasCalls || frame.kind == frameHeaders
		c.reason = c.allowed.received(frame)
		return c.reason == ""
	})
	return c.reason != ""
}

// afterPreface returns what follows the preface, nothing as long as it has not come, or never will.
func (c *Conn) afterPreface(data []byte) []byte {
	if c.prefaceHas < 0 {
		return nil
	}
	n := min(len(data), len(preface)-c.prefaceHas)
	if string(data[:n]) != preface[c.prefaceHas:c.prefaceHas+n] {
		c.prefaceHas = -1
		return nil
	}
	if c.prefaceHas += n; c.prefaceHas < len(preface) {
		return nil
	}
	c.isHTTP2 = true
	c.lock.Lock()
	c.counts = true
	c.lock.Unlock()
	return data[n:]
}

// Write writes; what it writes allows for more, or for less.
func (c *Conn) Write(data []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.lock.Lock()
	if c.counts {
		c.out.feed(data, func(frame seen) bool {
			if reason := c.allowed.sent(frame); reason != "" {
				c.reason = reason
			}
			return true
		})
	}
	c.lock.Unlock()
	if c.hasSaid {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(data)
	if c.isLeaving && err == nil {
		c.sayGoodbye()
	}
	return n, err
}

func (c *Conn) isOver() bool {
	if c.why() == "" {
		return false
	}
	c.hangUp()
	return true
}

// why returns the reason to hang up, "" for none.
func (c *Conn) why() string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.reason
}

// hangUp says why, between two frames, and reads on for a moment: else the caller would not see it.
func (c *Conn) hangUp() {
	if c.hasHungUp {
		return
	}
	c.hasHungUp = true
	if c.told != nil {
		c.told(c.why())
	}
	_ = c.Conn.SetDeadline(time.Now().Add(lingerFor)) // which ends a Write that the caller does not take
	c.writing.Lock()
	c.isLeaving = true
	c.sayGoodbye()
	c.writing.Unlock()
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
}

// sayGoodbye tells the caller to go, once. It is called with the lock of writing.
func (c *Conn) sayGoodbye() {
	if c.hasSaid || !c.out.isBetween() {
		return
	}
	c.hasSaid = true
	if _, err := c.Conn.Write(goAway("too many " + c.why())); err != nil {
		return
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// goAway returns the frame that ends a connection.
func goAway(text string) []byte {
	frame := make([]byte, headBytes, headBytes+8+len(text))
	frame[2], frame[3] = byte(8+len(text)), goAwayFrame
	frame = binary.BigEndian.AppendUint32(frame, everyStreamSoFar)
	frame = binary.BigEndian.AppendUint32(frame, codeEnhanceCalm)
	return append(frame, text...)
}

// CloseWrite says that no more follows.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
