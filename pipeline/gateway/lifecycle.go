package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
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

// thisProcess is the real one.
func thisProcess() process {
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

// serve runs the gateway until it is told to stop. An error means that it could not serve.
func serve(cfg config, log *logger, self process) error {
	security, err := loadServerTLS(cfg.tls)
	if err != nil {
		return err
	}
	stats := newStats()
	backends, err := newPool(cfg, log, stats)
	if err != nil {
		return err
	}
	defer backends.close()
	handler, err := newGateway(cfg, log, backends, stats)
	if err != nil {
		return err
	}
	listener, err := listen(cfg)
	if err != nil {
		return err
	}
	server := newServer(cfg, handler, log)
	server.TLSConfig = security
	backends.start()
	sweeping, endSweeping := context.WithCancel(context.Background())
	defer endSweeping()
	go handler.budget.sweep(sweeping)
	ended, guarded := make(chan error, 1), newGuard(listener, &cfg, stats)
	go func() {
		backends.awaitKnown(firstWord)
		ended <- serveOn(server, guarded)
	}()
	log.infof("gateway %s listens on %s, %d backends", version, listener.Addr(), len(backends.backends))
	watching, endWatching := context.WithCancel(context.Background())
	defer endWatching()
	goodbye := make(chan farewell)
	go self.watch(watching, cfg, backends.serving, log, goodbye)
	select {
	case err := <-ended:
		return err
	case why := <-goodbye:
		handler.draining.Store(true)
		log.infof("gateway stops: %s", why.reason)
		drain(server, guarded, why, goodbye, log)
		return nil
	}
}

// serveOn accepts connections until the server is shut down.
func serveOn(server *http.Server, guarded *guard) error {
	server.ConnState = guarded.note
	var err error
	if server.TLSConfig != nil {
		err = server.ServeTLS(guarded, "", "")
	} else {
		err = server.Serve(shapedListener{guarded})
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// watch says goodbye when a signal comes, and when the parent goes.
func (p process) watch(ctx context.Context, cfg config, serving <-chan struct{}, log *logger, goodbye chan<- farewell) {
	var gone <-chan struct{}
	var ticks <-chan time.Time
	parent := 0
	if cfg.hasParent {
		gone, ticks, parent = lifeLineEnd(p.parent), p.ticks, p.ppid()
		go p.tellReady(serving, log)
	}
	for {
		why := farewell{grace: orphanGrace, isLast: true}
		select {
		case got := <-p.signals:
			why = farewell{reason: got.String(), delay: cfg.drainDelay, grace: cfg.grace}
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
func (p process) tellReady(serving <-chan struct{}, log *logger) {
	<-serving
	if _, err := io.WriteString(p.parent, readyWord); err != nil {
		log.warningf("the parent cannot be told that the gateway is ready: %v", err)
	}
}

// drain goes on for a while, stops accepting, and waits for the requests in flight. Another farewell ends the
// waiting: a signal at once, the end of the parent after its grace.
func drain(server *http.Server, guarded *guard, why farewell, goodbye <-chan farewell, log *logger) {
	hurried, hurry := context.WithCancel(context.Background())
	defer hurry()
	waiting, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case next := <-goodbye:
			hurry()
			if next.isLast {
				sleep(waiting, next.grace)
			}
			cancel()
		case <-waiting.Done():
		}
	}()
	sleep(hurried, why.delay)
	takeLast(guarded.Listener)
	_ = guarded.Close() // it fails only if it is closed
	guarded.awaitIdle(hurried, min(lastWord, why.grace))
	ctx, over := context.WithTimeout(waiting, why.grace)
	defer over()
	if err := server.Shutdown(ctx); err != nil {
		log.warningf("requests were in flight when the time to stop was over: they are broken off")
		_ = server.Close()
	}
}
