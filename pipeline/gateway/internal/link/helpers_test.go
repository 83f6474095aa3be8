package link

import (
	"context"
	"net"
	"testing"
	"time"

	"pipeline/gateway/internal/gatewaytest"
)

// watched is a client that is kept, and what it reports.
type watched struct {
	*Client
	reports chan State
	ticks   chan time.Time
}

func startClient(t *testing.T, path string) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ticks := make(chan time.Time)
	config := Config{
		Dial:  func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) },
		Stall: 2 * time.Second,
		ticks: func() (<-chan time.Time, func()) { return ticks, func() {} },
	}
	w := &watched{New(config), make(chan State, 64), ticks}
	ended := make(chan struct{})
	go func() {
		w.Watch(ctx, func(now State) { w.reports <- now })
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		gatewaytest.Soon(t, "the end of a link", ended)
	})
	return w
}

// reporting waits for a report of a phase, and returns it.
func (w *watched) reporting(t *testing.T, wanted Phase) State {
	t.Helper()
	for {
		if now := gatewaytest.Soon(t, "a report", w.reports); now.Phase == wanted {
			return now
		}
	}
}

// startPair returns the two ends of a link that serves.
func startPair(t *testing.T) (*watched, *gatewaytest.LinkPeer) {
	t.Helper()
	server := gatewaytest.StartLinkServer(t, "")
	client := startClient(t, server.Path)
	peer := server.Peer(t, 1)
	client.reporting(t, Serving)
	return client, peer
}

// outcome is what became of a call.
type outcome struct {
	text string
	end  End
	err  error
}

// ask asks with a text, for which the server's end has a Request and a Response.
func (w *watched) ask(ctx context.Context, text string, call Call) outcome {
	call.Method = "inference"
	answer, err := w.Unary(ctx, &call, gatewaytest.RequestBytes(text))
	defer answer.Release()
	if err != nil || answer.Code != 0 {
		return outcome{"", answer.End, err}
	}
	return outcome{gatewaytest.TextOf(answer.Data), answer.End, nil}
}

// asking asks in the background.
func (w *watched) asking(ctx context.Context, text string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() { done <- w.ask(ctx, text, Call{}) }()
	return done
}

// open begins a stream.
func (w *watched) open(t *testing.T) *Stream {
	t.Helper()
	stream, err := w.Open(t.Context(), &Call{Method: gatewaytest.LinkStream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	return stream
}
