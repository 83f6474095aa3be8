// Package gateway puts the parts together and runs them until it is told to drain.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/sockets"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/internal/version"
)

const (
	readyWord   = "ready\n"
	orphanGrace = time.Second            // for requests in flight, when the parent is gone
	lookForHim  = time.Second            // how often we look whether it is still our parent
	firstWord   = time.Second            // for the backends to say how they are, before anybody is let in
	lastWord    = 200 * time.Millisecond // for what callers sent before they could know that it stops
)

// process is what the gateway needs of the process that it is.
type process struct {
	signals <-chan os.Signal
	parent  io.ReadWriter    // the life line
	ticks   <-chan time.Time // when to look for the parent
	ppid    func() int
}

// ThisProcess is the real one.
func ThisProcess() process {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	return process{signals, os.Stdin, time.Tick(lookForHim), os.Getppid}
}

// farewell is why the gateway stops, and the time that it goes on for, and that requests in flight have.
type farewell struct {
	reason string
	delay  time.Duration
	grace  time.Duration
	isLast bool // there is nobody who could say it again
}

// Serve runs the gateway until it is told to stop. An error means that it could not serve.
func Serve(cfg config.Config, log *slog.Logger, self process) error {
	security, err := config.LoadServerTLS(cfg.TLS)
	if err != nil {
		return err
	}
	stats := metrics.New()
	backends, err := upstream.NewPool(cfg, connectTo(cfg), log, stats)
	if err != nil {
		return err
	}
	defer backends.Close()
	handler, err := edge.NewHandler(cfg, log, backends, stats)
	if err != nil {
		return err
	}
	listener, err := edge.Listen(cfg)
	if err != nil {
		return err
	}
	server := edge.NewServer(cfg, handler, log)
	server.TLSConfig = security
	backends.Start()
	sweeping, endSweeping := context.WithCancel(context.Background())
	defer endSweeping()
	go handler.Budget.Sweep(sweeping)
	ended, guarded := make(chan error, 1), edge.NewGuard(listener, &cfg, stats)
	go func() {
		backends.AwaitKnown(firstWord)
		ended <- serveOn(server, guarded)
	}()
	log.Info(fmt.Sprintf("gateway %s listens on %s, %d backends", version.Version, listener.Addr(), len(backends.Backends)))
	watching, endWatching := context.WithCancel(context.Background())
	defer endWatching()
	goodbye := make(chan farewell)
	go self.watch(watching, cfg, backends.Serving, log, goodbye)
	select {
	case err := <-ended:
		return err
	case why := <-goodbye:
		handler.Draining.Store(true)
		log.Info("gateway stops: " + why.reason)
		drain(server, guarded, why, goodbye, log)
		return nil
	}
}

// connectTo returns how to connect to backends.
func connectTo(cfg config.Config) upstream.Connect {
	return func(address config.Backend, security *config.BackendTLS) (upstream.Upstream, error) {
		if address.IsLink {
			return upstream.NewLink(address.RPC, cfg.StallTimeout), nil
		}
		return upstream.NewGRPC(address, security)
	}
}

// serveOn accepts connections until the server is shut down.
func serveOn(server *http.Server, guarded *edge.Guard) error {
	server.ConnState = guarded.Note
	var err error
	if server.TLSConfig != nil {
		err = server.ServeTLS(guarded, "", "")
	} else {
		err = server.Serve(edge.ShapedListener{Listener: guarded})
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// watch says goodbye when a signal comes, and when the parent goes.
func (p process) watch(ctx context.Context, cfg config.Config, serving <-chan struct{}, log *slog.Logger, goodbye chan<- farewell) {
	var gone <-chan struct{}
	var ticks <-chan time.Time
	parent := 0
	if cfg.HasParent {
		gone, ticks, parent = lifeLineEnd(p.parent), p.ticks, p.ppid()
		go p.tellReady(serving, log)
	}
	for {
		why := farewell{grace: orphanGrace, isLast: true}
		select {
		case got := <-p.signals:
			why = farewell{reason: got.String(), delay: cfg.DrainDelay, grace: cfg.Grace}
		case <-gone:
			gone = nil
			why.reason = "the parent's end of the life line is closed"
		case <-ticks:
			if p.ppid() == parent {
				continue
			}
			ticks = nil
			why.reason = "the parent is gone"
		case <-ctx.Done():
			return
		}
		select {
		case goodbye <- why:
		case <-ctx.Done():
			return
		}
	}
}

// lifeLineEnd is closed when the parent closes its end, or is no more.
func lifeLineEnd(parent io.Reader) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, parent) // it says nothing that matters
		close(gone)
	}()
	return gone
}

// tellReady says the ready word to the parent once a backend serves.
func (p process) tellReady(serving <-chan struct{}, log *slog.Logger) {
	<-serving
	if _, err := io.WriteString(p.parent, readyWord); err != nil {
		log.Warn(fmt.Sprintf("the parent cannot be told that the gateway is ready: %v", err))
	}
}

// drain goes on for a while, stops accepting, and waits for the requests in flight. Another farewell ends the
// waiting: a signal at once, the end of the parent after its grace.
func drain(server *http.Server, guarded *edge.Guard, why farewell, goodbye <-chan farewell, log *slog.Logger) {
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
	clock.Sleep(hurried, why.delay)
	sockets.TakeLast(guarded.Listener)
	_ = guarded.Close() // it fails only if it is closed
	guarded.AwaitIdle(hurried, min(lastWord, why.grace))
	ctx, over := context.WithTimeout(waiting, why.grace)
	defer over()
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("requests were in flight when the time to stop was over: they are broken off")
		_ = server.Close()
	}
}
