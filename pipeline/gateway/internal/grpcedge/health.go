package grpcedge

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthService is gRPC's own, of which watchers end when the edge stops.
type healthService struct {
	*health.Server
	names    []string
	stopping context.Context
}

func newHealth(stopping context.Context, names []string) *healthService {
	service := &healthService{health.NewServer(), append([]string{""}, names...), stopping}
	service.set(false)
	return service
}

// set tells all who ask, and all who watch.
func (h *healthService) set(isReady bool) {
	now := healthpb.HealthCheckResponse_NOT_SERVING
	if isReady {
		now = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range h.names {
		h.SetServingStatus(name, now)
	}
}

// Watch tells a caller of each change, until it leaves or the edge stops.
func (h *healthService) Watch(asked *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.stopping, cancel)()
	watching := &watching{Health_WatchServer: stream, ctx: ctx}
	err := h.Server.Watch(asked, watching)
	if h.stopping.Err() == nil {
		return err
	}
	if watching.told == healthpb.HealthCheckResponse_SERVING { // the end came first
		_ = stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING})
	}
	return status.Error(codes.Unavailable, textStopped)
}

// watching is a stream that ends with another context than its own, and keeps its last message.
type watching struct {
	healthpb.Health_WatchServer
	ctx  context.Context
	told healthpb.HealthCheckResponse_ServingStatus
}

func (w *watching) Context() context.Context { return w.ctx }

func (w *watching) Send(answer *healthpb.HealthCheckResponse) error {
	w.told = answer.GetStatus()
	return w.Health_WatchServer.Send(answer)
}
