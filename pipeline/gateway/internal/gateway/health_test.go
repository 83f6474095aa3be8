package gateway

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/pipelinepb"
)

// stuckHealth says once that it serves; then it answers no check while it is stuck.
type stuckHealth struct {
	healthpb.UnimplementedHealthServer
	isStuck atomic.Bool
}

func (*stuckHealth) Watch(_ *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *stuckHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if s.isStuck.Load() {
		<-ctx.Done()
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func TestABackendThatAnswersNoChecksGetsNothingUntilItDoes(t *testing.T) {
	server, health := grpc.NewServer(), &stuckHealth{}
	healthpb.RegisterHealthServer(server, health)
	pipelinepb.RegisterPipelineServiceServer(server, &pipelinepb.UnimplementedPipelineServiceServer{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	g := startReady(t, "--backend", listener.Addr().String(), "--health-interval", "1ms", "--health-timeout", "50ms")
	health.isStuck.Store(true)
	gatewaytest.WaitUntil(t, "it is known to be silent", func() bool { return !g.Pool.IsReady() })
	gatewaytest.WantIn(t, g.log.String(), "gets no requests: it has not answered 3 checks of its health")
	health.isStuck.Store(false)
	g.waitUntilServing(t, 1)
}

func TestWithoutAHealthServiceThereIsNothingToCheck(t *testing.T) {
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{HasNoHealth: true})
	g := startReady(t, "--backend", backend.Address, "--health-interval", "1ms")
	for range 50 {
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if !g.Pool.IsReady() {
		t.Error("it is not ready")
	}
}

// brokenWeb hangs up on every request, and counts them.
func brokenWeb(t *testing.T, calls *atomic.Int64) string {
	t.Helper()
	return gatewaytest.StartWeb(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	}))
}

func TestWhatAnHTTPPortLostIsAskedAgainOnlyIfItIsSafe(t *testing.T) {
	var broken, well atomic.Int64
	backends := []*gatewaytest.Double{gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})}
	good := gatewaytest.StartWeb(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { well.Add(1) }))
	g := start(t, nil, "--eject-after", "0", "--backend", backends[0].Address+"/"+brokenWeb(t, &broken), "--backend", backends[1].Address+"/"+good)
	g.waitUntilServing(t, 2)
	for _, test := range []struct {
		method string
		header []string
		isSafe bool
	}{{"GET", nil, true}, {"POST", nil, false}, {"POST", []string{"Pipeline-Idempotent", "1"}, true}, {"POST", []string{"Pipeline-Idempotent", "0"}, false}} {
		before, failed := broken.Load(), 0
		for range 2 {
			if got := g.ask(t, test.method, "/v2/x", "body", test.header...); got.status != 200 {
				got.isRefusal(t, 503, 3001, "the HTTP port of backend "+backends[0].Address)
				failed++
			}
		}
		if broken.Load() == before || (failed == 0) != test.isSafe {
			t.Errorf("%+v: %d failed", test, failed)
		}
	}
}

func TestAnInferenceThatGotLostIsAskedAgainIfItIsMarked(t *testing.T) {
	asked := make(chan struct{})
	gone := gatewaytest.StartDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}, gatewaytest.DoubleOptions{})
	there := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", gone.Address)
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair, "Pipeline-Idempotent", "true") }()
	gatewaytest.Soon(t, "a request", asked)
	g.setTo(t, gone.Address, there.Address)
	g.waitUntilServing(t, 2)
	gone.Server.Stop()
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != 200 || there.Calls.Load() != 1 {
		t.Errorf("%d %s, %d calls", got.status, got.body, there.Calls.Load())
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, `pipeline_gateway_backend_retries_total{backend="`+there.Address+`"} 1`)
}

func TestABackendThatEndsItsConnectionsFailsNoRequest(t *testing.T) {
	often := grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 20 * time.Millisecond, MaxConnectionAgeGrace: gatewaytest.Patience})
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{Server: []grpc.ServerOption{often}})
	g := startReady(t, "--backend", backend.Address)
	end := time.Now().Add(300 * time.Millisecond) // some ten connections
	failed := 0
	for time.Now().Before(end) {
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			failed++
			t.Logf("%d %s", got.status, got.body)
		}
	}
	if failed > 0 {
		t.Errorf("%d failed", failed)
	}
}
