package gateway

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"pipeline/gateway/internal/gatewaytest"
)

// h2Caller is an HTTP/2 client without a mind of its own: it says what a test wants said.
type h2Caller struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	text   bytes.Buffer
	encode *hpack.Encoder
}

// startH2 connects without TLS, with settings.
func startH2(t *testing.T, address string, settings ...http2.Setting) *h2Caller {
	t.Helper()
	return startH2By(t, func(address string) (net.Conn, error) { return net.Dial("tcp", address) }, address, settings...)
}

// startH2By connects by dial.
func startH2By(t *testing.T, dial func(string) (net.Conn, error), address string, settings ...http2.Setting) *h2Caller {
	t.Helper()
	conn, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
	_, _ = io.WriteString(conn, http2.ClientPreface)
	c := &h2Caller{t: t, conn: conn, framer: http2.NewFramer(conn, conn)}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encode = hpack.NewEncoder(&c.text)
	if err := c.framer.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request; fields: name, value, name, value ... in the place of the usual ones.
func (c *h2Caller) ask(stream uint32, body string, fields ...string) {
	c.t.Helper()
	c.head(stream, body == "", body, fields...)
	if body == "" {
		return
	}
	if err := c.framer.WriteData(stream, true, []byte(body)); err != nil {
		c.t.Fatal(err)
	}
}

// head sends the headers of a request.
func (c *h2Caller) head(stream uint32, isAll bool, body string, fields ...string) {
	c.t.Helper()
	usual := []string{":method", "POST", ":path", "/svc/prediction", ":scheme", "http", ":authority", "h"}
	c.text.Reset()
	for at := 0; at < len(usual); at += 2 {
		value := usual[at+1]
		for given := 0; given < len(fields); given += 2 {
			if fields[given] == usual[at] {
				value = fields[given+1]
			}
		}
		_ = c.encode.WriteField(hpack.HeaderField{Name: usual[at], Value: value})
	}
	_ = c.encode.WriteField(hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(len(body))})
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.text.Bytes(), EndHeaders: true, EndStream: isAll,
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// hear returns the next frame that is of interest to a test.
func (c *h2Caller) hear(isWanted func(http2.Frame) bool) http2.Frame {
	c.t.Helper()
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatal(err)
		}
		if isWanted(frame) {
			return frame
		}
	}
}

// status returns that of the next answer.
func (c *h2Caller) status() string {
	c.t.Helper()
	answer := c.hear(func(frame http2.Frame) bool {
		_, isHead := frame.(*http2.MetaHeadersFrame)
		return isHead
	})
	return answer.(*http2.MetaHeadersFrame).PseudoValue("status")
}
