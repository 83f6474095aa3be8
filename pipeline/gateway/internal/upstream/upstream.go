// Package upstream sends requests to the pipeline servers behind the gateway, and tracks which of them serve.
package upstream

import (
	"context"
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/deadline"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/sequence"
)

// TimeoutKey names the caller's Grpc-Timeout, for a pipeline server.
const TimeoutKey = "pipeline-timeout"

// JSON is the method of an inference whose request and answer are the unchanged JSON of the HTTP port; a
// server that has it says so by its Traits.
const JSON = "json"

// POST is the method of a POST over HTTP whose head is the call's, and whose answer has a head of its own;
// who has it says so
// by its Traits. Its error may be a *link.LeftError: the HTTP port is to be asked.
const POST = "post"

// ErrNeverLeft says that an upstream cannot have seen a request: another one may be asked.
var ErrNeverLeft = errors.New("the request has not left")

// Headers are what a caller said beside its request, as edges have it.
type Headers interface {
	// Trace returns the caller's traceparent, "" for none.
	Trace() string
	// Metadata returns the metadata for an upstream elsewhere, a map that may be added to.
	Metadata() metadata.MD
	// All returns the headers for a server that forwards some to its hooks: without headers of the connection,
	// and with the caller's identity.
	All() http.Header
}

// Call is one request on its way to an upstream.
type Call struct {
	Method  string            // in full, /package.Service/Method; or JSON
	Path    string            // of JSON: /name/method, decoded; it has no line end
	Limit   deadline.Deadline // the time that the caller gives
	Started time.Time         // when the request came, from which that is counted
	Caller  string            // the address of who asks
	Headers Headers           // nil: there are no claims
	Data    []byte            // the request
	Share   *memory.Share     // where its bytes are counted; nil: nowhere
	IsSafe  bool              // the caller says that it may be done twice
	Step    *sequence.Step    // nil: of no sequence, or it does not matter
	Head    []byte            // of a POST
	Block   *arena.Block      // where the data lie, by Place; nil: elsewhere
	First   *Backend          // who is asked first; nil: whose turn it is

	Asked string // the name of the backend whose answer counts, as the pool notes it
}

// Traits are what edges do differently from server to server.
type Traits struct {
	IsLocal      bool // it is the server whose child the gateway is, reached by a link
	WantsHeaders bool // it receives all headers
	TakesJSON    bool // it has the method JSON
	TakesPOST    bool // it has the method POST
	WantsTrace   bool // it receives the traceparent
}

// Upstream is a connection to a pipeline server.
type Upstream interface {
	// Unary returns the answer in the method's own form. Its error is a *failure.Error,
	// ErrNeverLeft, or one of package context: that of ctx, or that the server saw the end of the time first.
	Unary(ctx context.Context, call *Call) (Reply, error)
	// Watch keeps the connection and reports the health of the server whenever it changes, until ctx ends.
	Watch(ctx context.Context, report func(Health))
	// Traits returns what is known of the server. They change with the connection, before that is reported.
	Traits() Traits
	// Close ends the connection.
	Close()
}

// outgoing adds to a context what gRPC says beside a request.
func (c *Call) outgoing(ctx context.Context) context.Context {
	told := metadata.MD{}
	if c.Headers != nil {
		told = c.Headers.Metadata()
	}
	if c.Limit.Text != "" {
		told[TimeoutKey] = []string{c.Limit.Text}
	}
	return metadata.NewOutgoingContext(ctx, told)
}
