package link

import (
	"context"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/deadline"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/sockets"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

// watched is a link that is kept, and what it reports.
type watched struct {
	*Link
	reports chan upstream.Health
	ticks   chan time.Time
}

func startLink(t *testing.T, path string) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ticks := make(chan time.Time)
	by := beats{2, func() (<-chan time.Time, func()) { return ticks, func() {} }, 2 * time.Second}
	w := &watched{New(sockets.Endpoint{Network: "unix", Address: path}, by), make(chan upstream.Health, 64), ticks}
	ended := make(chan struct{})
	go func() {
		w.Watch(ctx, func(now upstream.Health) { w.reports <- now })
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		gatewaytest.Soon(t, "the end of a link", ended)
	})
	return w
}

// reporting waits for a report of a state, and returns it.
func (w *watched) reporting(t *testing.T, wanted upstream.State) upstream.Health {
	t.Helper()
	for {
		if now := gatewaytest.Soon(t, "a report", w.reports); now.State == wanted {
			return now
		}
	}
}

// startPair returns the two ends of a link that serves.
func startPair(t *testing.T) (*watched, *gatewaytest.LinkPeer) {
	t.Helper()
	server := gatewaytest.StartLinkServer(t, "")
	client := startLink(t, server.Path)
	peer := server.Peer(t, 1)
	client.reporting(t, upstream.StateServing)
	return client, peer
}

// outcome is what became of a request.
type outcome struct {
	response *pipelinepb.Response
	err      error
}

// said is what a caller said beside its request.
type said struct{ header http.Header }

func (t said) Trace() string {
	if traces := t.header["Traceparent"]; len(traces) > 0 {
		return traces[len(traces)-1]
	}
	return ""
}

func (said) Metadata() metadata.MD { return metadata.MD{} }

func (t said) All() http.Header { return t.header }

// unary is anything that can be asked.
type unary func(ctx context.Context, call *upstream.Call) ([]byte, error)

func (ask unary) ask(ctx context.Context, request *pipelinepb.Request, header http.Header, limit deadline.Deadline) (*pipelinepb.Response, error) {
	data, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	answer, err := ask(ctx, &upstream.Call{Data: data, Headers: said{header}, Limit: limit})
	if err != nil {
		return nil, err
	}
	response := &pipelinepb.Response{}
	if err := proto.Unmarshal(answer, response); err != nil {
		return nil, failure.BrokenAnswer(err)
	}
	return response, nil
}

func (w *watched) ask(ctx context.Context, request *pipelinepb.Request, header http.Header, limit deadline.Deadline) (*pipelinepb.Response, error) {
	return unary(w.Unary).ask(ctx, request, header, limit)
}

// asking asks for a text in the background.
func (w *watched) asking(ctx context.Context, text string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		response, err := w.ask(ctx, gatewaytest.RequestOf(text), nil, deadline.Deadline{})
		done <- outcome{response, err}
	}()
	return done
}
