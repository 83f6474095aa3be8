package gateway

import (
	"crypto/tls"
	"log/slog"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/accesslog"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/grpcedge"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/tracing"
	"pipeline/gateway/internal/upstream"
)

// opener listens where the command line says.
type opener struct {
	cfg      config.Config
	log      *slog.Logger
	handler  *edge.Handler
	stats    *metrics.Stats
	security *tls.Config      // nil: none
	calls    *grpcedge.Server // nil: no gRPC is taken
	open     ports

	addresses *access.Addresses
}

// openPorts listens for each protocol that is asked for.
func openPorts(cfg config.Config, log *slog.Logger, handler *edge.Handler, backends *upstream.Pool, stats *metrics.Stats, gate *access.Gate) (ports, error) {
	security, err := config.LoadServerTLS(cfg.TLS, func(err error) { log.Error(err.Error()) })
	if err != nil {
		return nil, err
	}
	side := access.AllSides
	if cfg.Admin.IsAsked() {
		side = access.PublicSide
	}
	o := &opener{cfg: cfg, log: log, handler: handler, stats: stats, security: security}
	o.addresses = access.NewAddresses(gate.Said().ConnectionsPerAddress, &o.cfg.Trust)
	if cfg.GRPC.IsAsked() || cfg.OnePort {
		var remote grpcedge.Remote
		if !cfg.HasLinks() {
			remote = backends
		}
		o.calls = grpcedge.New(grpcedge.Config{
			Services: services, MaxMessageBytes: int(cfg.MaxMessageBytes), MaxConnections: cfg.MaxConnections,
			HandshakeTimeout: cfg.HandshakeTimeout, TLS: security, Budget: handler.Budget, Gate: gate, Trust: cfg.Trust, Side: side,
			Observe: stats.AnsweredRPC, HungUp: stats.HungUp, Remote: remote, FindSteps: backends.IsSticky(),
			Tracing: tracing.New(cfg.TracesPerS), Log: accesslog.New(log, cfg.AccessLogSample, cfg.LogFormat == config.JSONLog),
		}, backends)
		backends.OnChange = o.calls.SetReady
	}
	if cfg.HTTP.IsAsked() {
		err = o.web("listen", cfg.HTTP, side, cfg.OnePort)
	}
	if err == nil && cfg.GRPC.IsAsked() {
		reached := backends.Reached
		if !cfg.HasLinks() { // a caller of an absent fleet gets that as the answer
			reached = backends.Known
		}
		err = o.grpc(reached)
	}
	if err == nil && cfg.Admin.IsAsked() {
		err = o.web("admin-listen", cfg.Admin, access.AdminSide, true)
	}
	return o.open, err
}

// web listens for HTTP, and for gRPC if that is wanted and taken at all.
func (o *opener) web(flag string, socket config.Socket, side access.Side, takesCalls bool) error {
	listener, err := edge.Listen(flag, socket)
	if err != nil {
		return err
	}
	to := &door{handler: o.handler, web: o.handler.At(side), side: side}
	cfg := o.cfg
	if takesCalls && o.calls != nil {
		to.calls, cfg.H2C = o.calls, true
	}
	server := edge.NewServer(cfg, to, o.log)
	server.TLSConfig = o.security
	guard := edge.NewGuard(listener, &cfg, o.stats)
	guard.Addresses = o.addresses
	o.open = append(o.open, &httpPort{guard, server, to, o.log})
	return nil
}

// grpc listens for gRPC.
func (o *opener) grpc(reached <-chan struct{}) error {
	listener, err := edge.Listen("grpc-listen", o.cfg.GRPC)
	if err != nil {
		return err
	}
	o.open = append(o.open, &grpcPort{listener, o.addresses.Listen(listener, o.stats.RefusedConnections.Inc), o.calls, reached})
	return nil
}
