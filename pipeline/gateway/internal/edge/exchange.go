package edge

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/memory"
)

const (
	JSONType = "application/json"

	// An unused body is read as far as it has come, so that its connection can continue.
	unwantedBytes = 64 << 10
	UnwantedWait  = 20 * time.Millisecond

	// streamPieceBytes of an answer over HTTP/2 are taken within the write timeout, or the caller is given up.
	streamPieceBytes = 32 << 10

	// lingerFor is what a caller that still sends has to see the answer to what it began: the
	// system would throw the answer away as soon as we refused what it sends. One that has sent lingerBytes in
	// that time gets as much again, up to lingerMost in all.
	lingerFor   = 5 * time.Second
	lingerBytes = 4 << 20
	lingerMost  = 30 * time.Second
)

// statusCallerLeft is what log and metrics say of a request whose caller did not wait.
const statusCallerLeft = 499

// errCallerLeft says that there is nobody to answer.
var errCallerLeft = errors.New("the caller has left")

// exchange is one request and its answer, with what metrics and log want to know about them.
type exchange struct {
	http.ResponseWriter
	cfg      *config.Config
	draining *atomic.Bool // the gateway stops
	request  *http.Request
	started  time.Time
	route    route
	caller   string     // who asks, as far as it is known: an address, and a port
	from     netip.Addr // that address
	backend  string     // who was asked last; "": nobody
	status   int        // 0: not answered yet
	sent     int64      // bytes of the answer's body

	share      memory.Share
	head       atomic.Int32 // of the answer that a backend's HTTP port is asked for
	pace       *pace        // of the body; nil: there is none
	grant      *access.Grant
	owed       time.Duration // to wait before more is sent
	unsafe     string        // what is wrong with the request's head
	stream     *stream       // not nil: the body is passed on as it comes
	mustLinger bool          // the caller still sends, though it has its answer
	body       []byte        // of a refusal in another form than ours
	wanted     int           // the status that user code says; 0: the usual one
}

// isOurs says whether it is the gateway that asks.
func (x *exchange) isOurs() bool { return x.request == nil }

// WriteHeader notes the status; those below 200 are not the answer's.
func (x *exchange) WriteHeader(status int) {
	if status >= http.StatusOK {
		x.begin(status)
	}
	x.ResponseWriter.WriteHeader(status)
}

// begin notes the status of the answer. A gateway that stops sends the caller's next request elsewhere: over
// HTTP/2 package http makes a GOAWAY of it.
func (x *exchange) begin(status int) {
	if x.status != 0 {
		return
	}
	x.status = status
	if x.draining.Load() {
		x.Header().Set("Connection", "close")
	}
}

// Write sends a part of the answer's body. Over HTTP/2 the caller has a time for each piece; over HTTP/1.1
// the connection sees to that: see guardedConn.
func (x *exchange) Write(data []byte) (written int, err error) {
	if x.wanted != 0 && x.status == 0 {
		x.WriteHeader(x.wanted)
	}
	x.begin(http.StatusOK)
	x.share.Keep(memory.RequestBytes + int64(len(data))) // what it was made of is not needed any more
	if x.owed > 0 {
		clock.Sleep(x.request.Context(), x.owed)
	}
	defer func() { x.owed = x.grant.Sent(written) }()
	if x.request.ProtoMajor == 1 {
		written, err = x.ResponseWriter.Write(data)
		x.sent += int64(written)
		return written, err
	}
	for piece := range slices.Chunk(data, streamPieceBytes) {
		x.mustTake(true)
		n, err := x.ResponseWriter.Write(piece)
		written += n
		x.sent += int64(n)
		if err != nil {
			return written, err
		}
	}
	x.mustTake(false)
	return written, nil
}

// FlushError sends what is written; it is for http.ResponseController.
func (x *exchange) FlushError() error {
	x.mustTake(true)
	defer x.mustTake(false)
	return http.NewResponseController(x.ResponseWriter).Flush()
}

// mustTake sets the time that an HTTP/2 caller has to take what is sent next, or takes it off: a stream
// on which there is nothing to send may be silent. A stream that the caller has reset gets none: package
// http would
// keep it until then.
func (x *exchange) mustTake(isSending bool) {
	if x.request.ProtoMajor == 1 || x.request.Context().Err() != nil {
		return
	}
	var limit time.Time
	if isSending {
		limit = time.Now().Add(x.cfg.WriteTimeout)
	}
	_ = x.control().SetWriteDeadline(limit)
}

// lastWords gives the caller the time to take what is still to be sent when the handler has returned.
func (x *exchange) lastWords() { x.mustTake(true) }

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// control reaches the connection. Its errors mean that the connection is closed: the next read or write
// reports that.
func (x *exchange) control() *http.ResponseController {
	return http.NewResponseController(x.ResponseWriter)
}

// hasArrived takes the caller's time limit off: from here on it is we who take time.
func (x *exchange) hasArrived() { x.pace.end() }

// json answers with a JSON object.
func (x *exchange) json(status int, body []byte) {
	x.Header()["Content-Type"] = jsonTypes
	x.sayLength(len(body))
	x.WriteHeader(status)
	_, _ = x.Write(body) // to a caller that has left
}

func (x *exchange) sayLength(bytes int) { x.Header().Set("Content-Length", strconv.Itoa(bytes)) }

// say has the answer begin with what user code says of its head.
func (x *exchange) say(head *failure.Head) {
	if head != nil {
		x.wanted = head.Status
		maps.Copy(x.Header(), head.Header)
	}
}

// refuse answers a request whose body was read, or had none, with a refusal.
func (x *exchange) refuse(answer *failure.Error) {
	header := x.Header()
	if answer.Head != nil {
		maps.Copy(header, answer.Head.Header)
	}
	if answer.Allow != "" {
		header.Set("Allow", answer.Allow)
	}
	body, after := x.body, answer.RetryAfter
	if path := rawTarget(x.request); isOpenAI(path) {
		body, after = bodyFor(path, answer), min(after, longestRetry)
	}
	if after > 0 {
		header.Set("Retry-After", strconv.Itoa(after))
	}
	if answer.MustClose && x.request.ProtoMajor == 1 { // of HTTP/2 the stream ends, others continue
		header.Set("Connection", "close")
	}
	if body == nil {
		body = answer.Body()
	}
	x.json(answer.Status, body)
}

// refuseEarly answers a request whose body may still be on its way.
func (x *exchange) refuseEarly(answer *failure.Error) {
	if x.request.ProtoMajor != 1 || x.isUnwantedHere() {
		x.refuse(answer)
		return
	}
	closing := *answer
	closing.MustClose = true
	_ = x.control().EnableFullDuplex() // else the server would wait for the body first
	x.refuse(&closing)
	x.linger()
}

// refuseFault answers a request with an error that is a *failure.Error; for errCallerLeft there is nobody
// to answer. It says whether the error is one of these.
func (x *exchange) refuseFault(err error) bool {
	var answer *failure.Error
	if errors.As(err, &answer) {
		x.refuseEarly(answer)
		return true
	}
	return errors.Is(err, errCallerLeft)
}

// isUnwantedHere reads a body that is not needed and says whether it ended.
func (x *exchange) isUnwantedHere() bool {
	if x.request.ContentLength == 0 {
		return true
	}
	if x.request.Header.Get("Expect") != "" { // it waits for our word and is spared the body
		return false
	}
	x.pace.end()
	_ = x.control().SetReadDeadline(time.Now().Add(UnwantedWait))
	_, err := io.CopyN(io.Discard, x.request.Body, unwantedBytes)
	_ = x.control().SetReadDeadline(time.Time{})
	return err == io.EOF
}

// linger sends the written bytes, ends its side and reads for some time.
func (x *exchange) linger() {
	_ = x.control().Flush()
	conn, isConn := x.request.Context().Value(connKey{}).(net.Conn)
	if !isConn {
		return
	}
	lingerOn(conn, x.draining)
	_ = x.control().SetReadDeadline(time.Unix(1, 0)) // the server wants no more of it either
}

// lingerOn hangs up gently, for longer while the caller is busy sending and the gateway does not stop.
func lingerOn(conn net.Conn, draining *atomic.Bool) {
	ends := time.Now().Add(lingerMost)
	for hangUpGently(conn, lingerFor) >= lingerBytes && time.Now().Before(ends) && !draining.Load() {
	}
}

// closeWriter is a connection that can say that no more follows.
type closeWriter interface{ CloseWrite() error }

// hangUpGently ends our half of a connection, and waits until the other half ends, but not for longer. It
// returns the bytes that came.
func hangUpGently(conn net.Conn, most time.Duration) int64 {
	if half, ok := conn.(closeWriter); ok {
		_ = half.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(most))
	came, _ := io.Copy(io.Discard, struct{ io.Reader }{conn})
	return came
}

// connKey finds a connection in the context of its requests.
type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}
