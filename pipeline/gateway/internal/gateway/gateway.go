// Package gateway assembles the parts of the gateway and runs them until it has to drain.
package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/discovery"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/procs"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/internal/version"
)

// services are those of a pipeline server, for gRPC's health and reflection.
var services = []string{"baidu.paddle_serving.pipeline_serving.PipelineService", "inference.GRPCInferenceService"}

const (
	readyWord   = "ready\n"
	orphanGrace = time.Second // for requests in flight, when the parent is gone
	lookForHim  = time.Second // how often we look whether it is still our parent
	firstWord   = time.Second // for the backends to report their state, before callers are admitted
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

// farewell is why the gateway stops, for how long it continues to serve, and the time of requests in flight.
type farewell struct {
	reason string
	delay  time.Duration
	grace  time.Duration
	isLast bool // there is nobody who could say it again
}

// Serve runs the gateway until it has to stop. An error means that it could not serve.
func Serve(cfg config.Config, log *slog.Logger, self process) error {
	stats := metrics.New()
	backends, err := upstream.NewPool(cfg, connectTo(cfg), log, stats)
	if err != nil {
		return err
	}
	defer backends.Close()
	gate, err := access.New(cfg.Access, log, stats.LetIn)
	if err != nil {
		return err
	}
	if err := cfg.Trust.Add(gate.Said().TrustedProxies, gate.Said().Metadata); err != nil {
		return fmt.Errorf("--access %s: %w", cfg.Access, err)
	}
	handler, err := edge.NewHandler(cfg, log, backends, stats, gate)
	if err != nil {
		return err
	}
	open, err := openPorts(cfg, log, handler, backends, stats, gate)
	if err != nil {
		return err
	}
	sweeping, endSweeping := context.WithCancel(context.Background())
	defer endSweeping()
	lists := discovery.New(cfg, log, backends.Set)
	if err := lists.Start(sweeping); err != nil {
		return err
	}
	backends.Start()
	go lists.Follow(sweeping)
	go handler.Budget.Sweep(sweeping)
	go gate.Follow(sweeping)
	go procs.Follow(sweeping)
	ended := make(chan error, len(open))
	go func() {
		backends.AwaitKnown(firstWord)
		for _, each := range open {
			go func() { ended <- each.serve() }()
		}
	}()
	log.Info(fmt.Sprintf("gateway %s listens on %s, %d backends", version.Version, open.addresses(), len(backends.Backends())))
	watching, endWatching := context.WithCancel(context.Background())
	defer endWatching()
	goodbye := make(chan farewell)
	up := backends.Serving
	if cfg.ConnectedIsUp {
		up = backends.Reached
	}
	go self.watch(watching, cfg, up, log, goodbye)
	select {
	case err := <-ended:
		return err
	case why := <-goodbye:
		log.Info("gateway stops: " + why.reason)
		open.drain(why, goodbye, log)
		return nil
	}
}

// connectTo returns how to connect to backends.
func connectTo(cfg config.Config) upstream.Connect {
	return func(address config.Backend, security *config.BackendTLS) (upstream.Upstream, error) {
		if address.IsLink {
			return upstream.NewLink(address.RPC, cfg.StallTimeout), nil
		}
		return upstream.NewGRPC(address, security, &cfg.Balancing)
	}
}

// watch says goodbye when a signal comes, and when the parent goes.
func (p process) watch(ctx context.Context, cfg config.Config, up <-chan struct{}, log *slog.Logger, goodbye chan<- farewell) {
	var gone <-chan struct{}
	var ticks <-chan time.Time
	parent := 0
	if cfg.HasParent {
		gone, ticks, parent = lifeLineEnd(p.parent), p.ticks, p.ppid()
		go p.tellReady(up, log)
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

// lifeLineEnd is closed when the parent closes its end, or has ended.
func lifeLineEnd(parent io.Reader) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, parent) // it says nothing that matters
		close(gone)
	}()
	return gone
}

// tellReady says the ready word to the parent once a backend is up.
func (p process) tellReady(up <-chan struct{}, log *slog.Logger) {
	<-up
	if _, err := io.WriteString(p.parent, readyWord); err != nil {
		log.Warn(fmt.Sprintf("cannot notify the parent that the gateway is ready: %v", err))
	}
}
