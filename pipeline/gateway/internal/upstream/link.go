package upstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/sockets"
	"pipeline/gateway/pipelinepb"
)

const (
	// linkInference is the method of a link for an HTTP edge, which reads the caller's time itself.
	linkInference  = "inference"
	pathKey        = ":path"
	traceKey       = "traceparent"
	mostTraceBytes = 1 << 10 // of a traceparent; a real one has 55
)

// Link asks the server whose child the gateway is.
type Link struct{ *link.Client }

// NewLink prepares the link to a server at a place, which is given up after so long a silence.
func NewLink(place sockets.Endpoint, stall time.Duration) *Link {
	return &Link{link.New(link.Config{
		Dial:   func(ctx context.Context) (net.Conn, error) { return sockets.PrivateTo(place)(ctx, "") },
		Secret: func() (string, error) { return secretBeside(place.Address) },
		Stall:  stall,
	})}
}

// secretBeside returns the secret of the links in a socket's folder; "" if there is none.
func secretBeside(socket string) (string, error) {
	secret, err := os.ReadFile(filepath.Join(filepath.Dir(socket), "secret"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(secret), err
}

// Unary returns the server's answer: see Upstream.
func (l *Link) Unary(ctx context.Context, call *Call) (Reply, error) {
	asked, err := l.linked(call)
	if err != nil {
		return Reply{}, err
	}
	answer, err := l.Client.Unary(ctx, asked, call.Data)
	if err != nil {
		return Reply{}, failureOfLink(err)
	}
	if err := failureOfEnd(&answer.End); err != nil {
		answer.Release()
		return Reply{}, err
	}
	if call.Method == POST {
		return Reply{Head: headOfPOST(answer.Status, answer.Trailers.All()), Long: &answer}, nil
	}
	head := headOfEnd(answer.Status, answer.Trailers.All())
	return Reply{Data: answer.Detach(), Head: head}, nil
}

// linked returns the form of a call for a link. Its error is a *failure.Error.
func (l *Link) linked(call *Call) (*link.Call, error) {
	asked := &link.Call{Method: call.Method, Caller: call.Caller, Block: call.Block}
	if call.Method == pipelinepb.PipelineService_Inference_FullMethodName {
		asked.Method = linkInference
	}
	if call.Limit.Text != "" {
		started := call.Started
		if started.IsZero() {
			started = time.Now()
		}
		asked.Deadline = started.Add(call.Limit.After)
	}
	if call.Share != nil {
		asked.Budget = call.Share
	}
	if call.Head != nil {
		asked.Deadline, asked.Metadata = time.Time{}, call.Head // which says when to answer
		return asked, nil
	}
	if call.Path != "" {
		asked.Metadata = link.AppendField(make([]byte, 0, 64), pathKey, call.Path)
	}
	peer := l.Peer()
	if peer == nil || call.Headers == nil {
		return asked, nil
	}
	if peer.WantsHeaders {
		for name, values := range call.Headers.All() {
			name = strings.ToLower(name)
			for _, value := range values {
				asked.Metadata = link.AppendField(asked.Metadata, name, value)
			}
		}
	} else if trace := call.Headers.Trace(); peer.WantsTrace && trace != "" && len(trace) <= mostTraceBytes {
		asked.Metadata = link.AppendField(asked.Metadata, traceKey, trace)
	}
	if size := len(asked.Metadata); size > link.MaxMetadataBytes {
		text := fmt.Sprintf("the request's headers have %d bytes, and a link takes %d", size, link.MaxMetadataBytes)
		return nil, &failure.Error{Status: http.StatusRequestHeaderFieldsTooLarge, ErrNo: failure.CodePackage, Text: text}
	}
	return asked, nil
}

// failureOfEnd returns what a call ended with that did not go well.
func failureOfEnd(end *link.End) error {
	if end.Code == 0 { // an answer, whatever status user code has given it
		return nil
	}
	return &failure.Error{
		Status: end.Status, ErrNo: failure.ErrNo(end.ErrNo), Text: end.Text, RetryAfter: end.RetryAfter, Code: codes.Code(end.Code),
		IsRefused: failure.ErrNo(end.ErrNo) == failure.CodeOverloaded,
	}
}

// failureOfLink returns what a call ended with to which the server has said nothing: see Upstream.
func failureOfLink(err error) error {
	var lost *link.LostError
	var reset *link.ResetError
	switch {
	case errors.Is(err, link.ErrNeverLeft):
		return ErrNeverLeft
	case errors.As(err, &lost):
		return failure.Unavailable(err.Error())
	case errors.As(err, &reset):
		return failure.BrokenAnswer(err)
	case errors.Is(err, link.ErrNoMethod):
		return &failure.Error{Status: http.StatusNotImplemented, ErrNo: failure.CodeNotImplemented, Text: err.Error()}
	case errors.Is(err, link.ErrTooLarge):
		return &failure.Error{Status: http.StatusRequestEntityTooLarge, ErrNo: failure.CodePackage, Text: err.Error()}
	}
	return err
}

// Watch keeps a connection, and reports the health of the server whenever it changes, until ctx ends.
func (l *Link) Watch(ctx context.Context, report func(Health)) {
	l.Client.Watch(ctx, func(now link.State) { report(Health{stateOf[now.Phase], now.Reason}) })
}

var stateOf = map[link.Phase]State{link.Down: StateDown, link.Connected: StateConnected, link.Serving: StateServing}

// Traits returns what the server says of itself.
func (l *Link) Traits() Traits {
	peer := l.Peer()
	if peer == nil {
		return Traits{IsLocal: true}
	}
	_, takesJSON := peer.Methods[JSON]
	_, takesPOST := peer.Methods[POST]
	return Traits{
		IsLocal: true, WantsHeaders: peer.WantsHeaders, WantsTrace: peer.WantsTrace, TakesJSON: takesJSON, TakesPOST: takesPOST,
	}
}

// Close has nothing to do: the connection ends with Watch.
func (*Link) Close() {}
