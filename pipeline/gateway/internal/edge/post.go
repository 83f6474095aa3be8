package edge

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/sequence"
	"pipeline/gateway/internal/upstream"
)

// A server whose child the gateway is answers plain POSTs over the link, as the lane of its HTTP port does;
// all others are for the port itself. The server decides which POSTs are plain.

const (
	leftFor     = time.Second // what was left by its head is not asked again
	mostLeft    = 512         // heads
	mostHead    = 8 << 10     // bytes
	receiveStep = 64 << 10    // bytes of a body for which room is made at once
)

// toldOfPOST are the headers that the answer to a POST depends on, unless it receives all headers.
var toldOfPOST = []string{"Accept", "Accept-Encoding", "Content-Type", "Grpc-Timeout", jsonLength}

// leftHeads are the heads of POSTs that a server has left to its HTTP port.
type leftHeads struct {
	lock  sync.Mutex
	known map[string]time.Time
}

func (l *leftHeads) has(head []byte) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	since, isKnown := l.known[string(head)]
	return isKnown && time.Since(since) < leftFor
}

func (l *leftHeads) add(head []byte) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if len(l.known) >= mostLeft || l.known == nil {
		l.known = map[string]time.Time{}
	}
	l.known[string(head)] = time.Now()
}

// postHead returns the head of a plain POST; nil: it is for the HTTP port.
func (g *Handler) postHead(x *exchange) []byte {
	r, told := x.request, g.Pool.Candidates.Load()
	if r.Method != http.MethodPost || r.ContentLength < 0 || r.ContentLength > x.cfg.MaxMessageBytes || r.URL.RawQuery != "" || r.URL.ForceQuery {
		return nil
	}
	if !told.AllLocal || !told.AllTakePOST || !isPlainHeader(r.Header) || mayWantParts(r.Header) {
		return nil
	}
	head := make([]byte, 0, 256)
	head = append(append(append(head, "POST "...), rawTarget(r)...), " HTTP/1.1\r\n"...)
	if told.WantHeaders {
		all := x.All()
		delete(all, "Content-Length")
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if len(all[name]) != 1 {
				return nil
			}
			head = appendField(head, name, all[name][0])
		}
	} else {
		for _, name := range toldOfPOST {
			values := r.Header[name]
			if len(values) > 1 {
				return nil
			}
			if len(values) == 1 {
				head = appendField(head, name, values[0])
			}
		}
		if trace := x.Trace(); told.WantTrace && trace != "" {
			head = appendField(head, traceHeader, trace)
		}
	}
	head = append(strconv.AppendInt(append(head, "content-length: "...), r.ContentLength, 10), "\r\n\r\n"...)
	if len(head) > mostHead || g.left.has(head) {
		return nil
	}
	return head
}

// isPlainHeader says whether nothing is said of the body or of a web page.
func isPlainHeader(header http.Header) bool {
	for _, name := range []string{"Content-Encoding", "Expect", "Origin", "Upgrade"} {
		if len(header[name]) > 0 {
			return false
		}
	}
	return true
}

func appendField(head []byte, name, value string) []byte {
	head = append(append(head, name...), ": "...)
	return append(append(head, value...), "\r\n"...)
}

// forward lets a backend answer what is not the gateway's: over the link, or at its HTTP port.
func (g *Handler) forward(x *exchange) {
	head := g.postHead(x)
	if head == nil {
		g.web.forward(x)
		return
	}
	var body []byte
	var err error
	var block *arena.Block
	var first *upstream.Backend
	switch length := x.request.ContentLength; {
	case length <= wholeBytes:
		body, err = x.readBody(x.cfg.MessageLimit())
	default:
		if block, first = g.Pool.Place(int(length), leadOfPOST(x.request)); block == nil {
			g.web.forward(x) // piece by piece
			return
		}
		defer block.Release()
		body, err = block.Data, x.receive(block.Data)
	}
	if err != nil {
		x.refuseFault(err) // which it is
		return
	}
	call := &upstream.Call{
		Method: upstream.POST, Started: x.started, Caller: x.caller, Data: body, Share: &x.share, Head: head, Block: block, First: first,
		IsSafe: isIdempotent(x.request.Header),
	}
	if g.Pool.IsSticky() {
		call.Step = stepOfBody(x.request, body)
	}
	if g.posted(x, call) {
		return
	}
	if block != nil { // the transport may still read the body when its answer is there, and the block is released then
		body = bytes.Clone(body)
	}
	g.web.serve(x, withBody(x.request, body))
}

// leadOfPOST returns how many bytes precede the first tensor of a body.
func leadOfPOST(r *http.Request) int {
	if size, err := strconv.Atoi(r.Header.Get(jsonLength)); err == nil && size > 0 && int64(size) < r.ContentLength {
		return size
	}
	return 0
}

// receive reads a body of a length that is known. Its error is a *failure.Error or errCallerLeft.
func (x *exchange) receive(room []byte) error {
	source := x.request.Body
	for at, counted := 0, 0; at < len(room); {
		if at >= counted {
			step := min(max(receiveStep, counted), len(room)-counted)
			if err := x.share.Need(int64(step)); err != nil {
				return err
			}
			counted += step
		}
		n, err := source.Read(room[at:counted])
		if at += n; err != nil && at < len(room) {
			return x.bodyFault(err)
		}
	}
	x.hasArrived()
	return nil
}

// posted answers a POST over the link; false: the server leaves it to its HTTP port.
func (g *Handler) posted(x *exchange, call *upstream.Call) bool {
	ctx := x.request.Context()
	if limit, isLimited := x.timeToBegin(); isLimited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	answer, err := g.Pool.Unary(ctx, call)
	x.backend = call.Asked
	var left *link.LeftError
	switch {
	case err == nil:
		x.answer(&answer)
	case errors.As(err, &left):
		if left.ByHead {
			g.left.add(call.Head)
		}
		return false
	case x.request.Context().Err() != nil:
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		x.refuse(tooLate(call.Asked))
	default:
		x.refusePOST(err)
	}
	return true
}

// refusePOST answers with a failure of a backend, in the form of the path's protocol.
func (x *exchange) refusePOST(err error) {
	var refused *failure.Error
	if !errors.As(err, &refused) {
		refused = failure.Unavailable(err.Error())
	}
	x.refuse(refused)
}

// answer writes the answer to a POST.
func (x *exchange) answer(answer *upstream.Reply) {
	long := answer.Long
	defer long.Release()
	header := x.Header()
	for name, values := range answer.Head.Header {
		header[name] = values
	}
	if header["Content-Type"] == nil {
		header["Content-Type"] = jsonTypes
	}
	x.share.Keep(memory.RequestBytes + int64(long.Size()))
	x.sayLength(long.Size())
	x.WriteHeader(answer.Head.Status)
	if long.Parts == nil {
		_, _ = x.Write(long.Data) // to a caller that has left
		return
	}
	for _, part := range long.Parts {
		if _, err := x.Write(part); err != nil {
			return
		}
	}
}

// stepOfBody returns what a request says of its sequence: in a header, or in its body.
func stepOfBody(r *http.Request, body []byte) *sequence.Step {
	if found := sequence.OfHeader(r.Header[sequence.Header]); found != nil {
		return found
	}
	if size, err := strconv.Atoi(r.Header.Get(jsonLength)); err == nil && size >= 0 && size <= len(body) {
		body = body[:size] // tensors follow
	}
	if len(body) > wholeBytes {
		body = nil
	}
	return sequence.OfJSON(r.URL.Path, r.URL.RawQuery, body)
}
