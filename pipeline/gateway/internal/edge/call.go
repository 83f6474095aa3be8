package edge

import (
	"context"
	"io"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/deadline"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/memory"
)

// call is one inference on its way through the generated code. To that it is the body of the
// request; by its context it reaches the client that asks a backend.
type call struct {
	exchange *exchange
	original []byte // the body as it came
	plain    []byte // unpacked
	weight   int64  // of the request that is read from it, roughly
	deadline deadline.Deadline
	fallback *fallback // not nil: the door is to judge it
	failed   error     // what the generated code ended with
}

// forget drops a body that nobody needs any more.
func (c *call) forget() {
	if encodingOf(c.exchange.request.Header) != "" {
		buffers.Release(c.plain)
	}
	buffers.Release(c.original)
	c.original, c.plain = nil, nil
	c.exchange.share.Keep(memory.RequestBytes + c.weight)
}

// fallback is why a backend's HTTP door has to answer a request, and the answer if it cannot.
type fallback struct {
	reason string // a label of the metrics
	own    *failure.Error
}

func (h *fallback) Error() string { return h.own.Error() }

// Read has nothing left: the marshaler takes the body unchanged.
func (*call) Read([]byte) (int, error) { return 0, io.EOF }

// Close does nothing: the body is closed by who has read it.
func (*call) Close() error { return nil }

type callKey struct{}

func withCall(ctx context.Context, asked *call) context.Context {
	return context.WithValue(ctx, callKey{}, asked)
}

// callOf returns the call of a context, nil for none.
func callOf(ctx context.Context) *call {
	asked, _ := ctx.Value(callKey{}).(*call)
	return asked
}
