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
	orphanGrace = time.Second // for requests in flight, when the parent is gone
	lookForHim  = time.Second // how often we look whether it is still our parent
	firstWord   = time.Second // for the backends to say how they are, before anybody is let in
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

// farewell is why the gateway stops, and the time that requests in flight have.
type farewell struct {
	reason string
	grace  time.Duration
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
	ended := make(chan error, 1)
	go func() {
		backends.awaitKnown(firstWord)
		ended <- serveOn(server, newGuard(listener, &cfg, stats))
	}()
	log.infof("gateway %s listens on %s, %d backends", version, listener.Addr(), len(backends.backends))
	goodbye := make(chan farewell, 3) // one of each who may say it
	go self.watch(cfg, backends.serving, log, goodbye)
	select {
	case err := <-ended:
		return err
	case why := <-goodbye:
		handler.draining.Store(true)
		log.infof("gateway stops: %s", why.reason)
		drain(server, why.grace, self.signals, log)
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

// watch says goodbye when a signal comes or the parent goes.
func (p process) watch(cfg config, serving <-chan struct{}, log *logger, goodbye chan<- farewell) {
	var gone <-chan struct{}
	var ticks <-chan time.Time
	parent := 0
	if cfg.hasParent {
		gone, ticks, parent = lifeLineEnd(p.parent), p.ticks, p.ppid()
		go p.tellReady(serving, log)
	}
	for {
		select {
		case got := <-p.signals:
			goodbye <- farewell{got.String(), cfg.grace}
			return
		case <-gone:
			goodbye <- farewell{"the parent's end of the life line is closed", orphanGrace}
			return
		case <-ticks:
			if p.ppid() != parent {
				goodbye <- farewell{"the parent is gone", orphanGrace}
				return
			}
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

// drain stops accepting and waits for the requests in flight; a second signal ends the waiting.
func drain(server *http.Server, grace time.Duration, signals <-chan os.Signal, log *logger) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := server.Shutdown(ctx); err != nil {
		log.warningf("requests were in flight when the time to stop was over: they are broken off")
		_ = server.Close()
	}
}
