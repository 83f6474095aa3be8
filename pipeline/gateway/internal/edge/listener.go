package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/h2guard"
	"pipeline/gateway/internal/logging"
)

// maxHeadBytes is what a request's head may have, as at the door; package http adds 4096 to it.
const (
	maxHeadBytes  = 64 << 10
	headTolerance = 4096
)

// Of an HTTP/2 connection. What it may send beside requests: see h2guard.
const (
	streamsAtOnce    = 100
	frameBytes       = 64 << 10 // as long as a connection lives, it has a buffer as large as the largest one
	receiveBytes     = 1 << 20  // that the caller may send ahead, on all its streams
	headerTableBytes = 4 << 10
	pingAfter        = 30 * time.Second // of silence
	pingFor          = 10 * time.Second
)

// Listen opens a listening socket, or takes the inherited one. The flag is the one that asks for it.
func Listen(flag string, socket config.Socket) (net.Listener, error) {
	if socket.FD == config.NoFD {
		listener, err := net.Listen("tcp", socket.Address)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w: stop the process that uses the address, or choose another address", flag, socket.Address, err)
		}
		return listener, nil
	}
	inherited := os.NewFile(uintptr(socket.FD), "listen-fd")
	if inherited == nil {
		return nil, fmt.Errorf("--%s-fd %d is not a descriptor", flag, socket.FD)
	}
	defer inherited.Close() // the listener has its own copy
	listener, err := net.FileListener(inherited)
	if err != nil {
		return nil, fmt.Errorf("--%s-fd %d: %w: pass a listening socket", flag, socket.FD, err)
	}
	return listener, nil
}

// ShapedListener accepts connections on which package http's own refusals have our form. Told receives the
// reason why a caller of HTTP/2 was disconnected.
type ShapedListener struct {
	net.Listener
	Told func(reason string)
}

// Accept waits for the next connection.
func (l ShapedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &shapedConn{Conn: h2guard.New(conn, false, streamsAtOnce, l.Told)}, nil
}

// shapedConn gives the form of a Response to what package http says, in plain text and without
// asking anybody, to a caller that does not speak HTTP. A caller that speaks TLS is refused at once: its
// greeting has no line end, which package http would wait for.
type shapedConn struct {
	net.Conn
	hasRead    bool
	hasRefused bool // both by the goroutine that serves the connection, which also closes it
	framing    framing
	requests   int64 // that the handler was given
}

// secureConn is a shaped one over TLS.
type secureConn struct {
	*shapedConn
	secure *tls.Conn
}

// ConnectionState tells package http of TLS.
func (c secureConn) ConnectionState() tls.ConnectionState { return c.secure.ConnectionState() }

// unsafeHead returns what is wrong with the head of a request that package http has taken; "": nothing.
func unsafeHead(r *http.Request) string {
	conn, isFramed := r.Context().Value(connKey{}).(interface{ nextFault() string })
	if !isFramed || r.ProtoMajor != 1 {
		return ""
	}
	return conn.nextFault()
}

// nextFault returns what is wrong with the head of the next request that the handler is given.
func (c *shapedConn) nextFault() string {
	c.requests++
	return c.framing.whyNot(c.requests)
}

var (
	statusLineStart = []byte("HTTP/1.1 ")
	cannedHeaders   = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
)

// tlsHandshake is the first byte of a TLS connection; none of HTTP begins with it.
const tlsHandshake = 0x16

// Read reads, and refuses a connection that begins with TLS.
func (c *shapedConn) Read(buffer []byte) (int, error) {
	n, err := c.Conn.Read(buffer)
	if n == 0 {
		return n, err
	}
	c.framing.feed(buffer[:n])
	if c.hasRead || buffer[0] != tlsHandshake {
		c.hasRead = true
		return n, err
	}
	c.hasRead = true
	c.hasRefused = true
	_, _ = c.Conn.Write(shaped([]byte("400 this port speaks no TLS")))
	return 0, io.EOF
}

// Write sends data, or our refusal where it is package http's. That is one write of a status line,
// these two header fields and a text; answers of handlers have a Date.
func (c *shapedConn) Write(data []byte) (int, error) {
	if !bytes.HasPrefix(data, statusLineStart) {
		return c.Conn.Write(data)
	}
	end := bytes.IndexByte(data, '\r')
	if end < 0 || !bytes.HasPrefix(data[end:], cannedHeaders) {
		return c.Conn.Write(data)
	}
	c.hasRefused = true
	if _, err := c.Conn.Write(shaped(data[len(statusLineStart):end])); err != nil {
		return 0, err
	}
	return len(data), nil
}

// shaped returns the whole answer that stands for a status and its reason.
func shaped(statusAndReason []byte) []byte {
	code, reason, _ := strings.Cut(string(statusAndReason), " ")
	if reason == http.StatusText(http.StatusBadRequest) {
		reason = "its first line or a header field cannot be read"
	}
	answer := notHTTP(strings.TrimPrefix(reason, "Bad Request: "))
	if code == "431" {
		answer = headTooLarge()
	}
	return written(answer)
}

// written returns the bytes of an answer that ends a connection.
func written(answer *failure.Error) []byte {
	body := answer.Body()
	retry := ""
	if answer.RetryAfter > 0 {
		retry = fmt.Sprintf("retry-after: %d\r\n", answer.RetryAfter)
	}
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nconnection: close\r\n%scontent-type: %s\r\ncontent-length: %d\r\n\r\n",
		answer.Status, http.StatusText(answer.Status), retry, JSONType, len(body))
	return append([]byte(head), body...)
}

// Close hangs up; a caller that was refused and still sends would be cut off before it sees why.
func (c *shapedConn) Close() error {
	if c.hasRefused {
		hangUpGently(c.Conn, lingerFor)
	}
	return c.Conn.Close()
}

// CloseWrite says that no more follows.
func (c *shapedConn) CloseWrite() error {
	if half, ok := c.Conn.(closeWriter); ok {
		return half.CloseWrite()
	}
	return nil
}

// NewServer returns the HTTP server of a gateway.
func NewServer(cfg config.Config, handler http.Handler, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(cfg.H2C || cfg.TLS.Cert != "") // behind TLS: see guardedH2
	return &http.Server{
		Handler:                      withTLS(handler),
		Protocols:                    &protocols,
		ReadHeaderTimeout:            min(cfg.HeadPatience, cfg.Patience), // for bodies see `pace`
		IdleTimeout:                  keepAlive,
		MaxHeaderBytes:               maxHeadBytes - headTolerance,
		DisableGeneralOptionsHandler: true, // `OPTIONS *` is the door's to answer
		ErrorLog:                     logging.Standard(log),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          streamsAtOnce,
			MaxReceiveBufferPerConnection: receiveBytes,
			MaxReceiveBufferPerStream:     receiveBytes,
			MaxReadFrameSize:              frameBytes,
			MaxDecoderHeaderTableSize:     headerTableBytes,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingFor,
			// WriteByteTimeout would end a TLS connection in the middle of a record: see guardedConn.
		},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return withConn(ctx, conn)
		},
	}
}
