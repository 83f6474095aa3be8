package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/grpcedge"
	"pipeline/gateway/internal/sockets"
)

// lastWord is the time for what callers sent before they could know that it stops.
const lastWord = 200 * time.Millisecond

// port takes requests in one protocol.
type port interface {
	net.Listener
	// serve accepts connections until it is stopped.
	serve() error
	// drain says not ready from now on.
	drain()
	// finish accepts no more, and waits for the requests in flight until ctx ends. False: some were broken off.
	// It
	// gives callers a moment to send what they could not know to be too late, if nobody is in a hurry.
	finish(ctx, hurried context.Context, grace time.Duration) bool
}

// door is where the requests of a port go: calls of gRPC to one edge, all else to the other.
type door struct {
	handler *edge.Handler
	web     http.Handler     // it, as the port shows it
	calls   *grpcedge.Server // nil: they are not taken here
	side    access.Side
}

// ServeHTTP answers one request.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.calls != nil && grpcedge.IsCall(r) {
		d.calls.ServeHTTP(w, r.WithContext(access.WithSide(r.Context(), d.side)))
		return
	}
	d.web.ServeHTTP(w, r)
}

func (d *door) drain() {
	d.handler.Draining.Store(true)
	if d.calls != nil {
		d.calls.Drain()
	}
}

func (d *door) endStreams() {
	if d.calls != nil {
		d.calls.EndStreams()
	}
}

// httpPort is one of HTTP; its handler knows whether it drains.
type httpPort struct {
	*edge.Guard
	server *http.Server
	door   *door
	log    *slog.Logger
}

func (p *httpPort) serve() error { return serveOn(p.server, p.Guard, p.log) }

// serveOn accepts connections until the server is shut down.
func serveOn(server *http.Server, guarded *edge.Guard, log *slog.Logger) error {
	server.ConnState = guarded.Note
	var open net.Listener = edge.ShapedListener{Listener: guarded, Told: guarded.HungUp}
	if server.TLSConfig != nil {
		open = edge.NewSecureListener(guarded, server.TLSConfig, guarded.HandshakeTimeout(), guarded.HungUp, log)
	}
	err := server.Serve(open)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (p *httpPort) drain() { p.door.drain() }

func (p *httpPort) finish(ctx, hurried context.Context, grace time.Duration) bool {
	sockets.TakeLast(p.Listener)
	_ = p.Close() // it fails only if it is closed
	p.door.endStreams()
	p.AwaitIdle(hurried, min(lastWord, grace))
	isClean := p.server.Shutdown(ctx) == nil
	_ = p.server.Close()
	return isClean
}

// grpcPort is the one of gRPC, which has a farewell of its own for what is on its way.
type grpcPort struct {
	net.Listener
	limited net.Listener // it, with limits
	server  *grpcedge.Server
	reached <-chan struct{} // closed when there is somebody to ask: callers wait in the socket's queue until then
}

func (p *grpcPort) serve() error {
	<-p.reached
	return p.server.Serve(p.limited)
}

func (p *grpcPort) drain() { p.server.Drain() }

func (p *grpcPort) finish(ctx, _ context.Context, _ time.Duration) bool {
	sockets.TakeLast(p.Listener)
	return p.server.Stop(ctx)
}

// ports are all of them.
type ports []port

// addresses are for people.
func (p ports) addresses() (text string) {
	for _, each := range p {
		if text != "" {
			text += " and "
		}
		text += each.Addr().String()
	}
	return text
}

// drain serves for some more time, stops accepting, and waits for the requests in flight. Another farewell
// ends the
// waiting: a signal at once, the end of the parent after its grace.
func (p ports) drain(why farewell, goodbye <-chan farewell, log *slog.Logger) {
	hurried, hurry := context.WithCancel(context.Background())
	defer hurry()
	waiting, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case next := <-goodbye:
			hurry()
			if next.isLast {
				clock.Sleep(waiting, next.grace)
			}
			cancel()
		case <-waiting.Done():
		}
	}()
	for _, each := range p {
		each.drain()
	}
	clock.Sleep(hurried, why.delay)
	ctx, over := context.WithTimeout(waiting, why.grace)
	defer over()
	var finishing sync.WaitGroup
	for _, each := range p {
		finishing.Go(func() {
			if !each.finish(ctx, hurried, why.grace) {
				log.Warn("requests were in flight when the time to stop was over: they are broken off")
			}
		})
	}
	finishing.Wait()
}
