package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/logging"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

func TestRequestsGoRound(t *testing.T) {
	doubles := []*gatewaytest.Double{gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{IsUnix: true}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{HasNoHealth: true})}
	g := start(t, nil, "--backend", doubles[0].Address, "--backend", doubles[1].Address, "--backend", doubles[2].Address)
	g.waitUntilServing(t, 3)
	for range 30 {
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for _, each := range doubles {
		if calls := each.Calls.Load(); calls != 10 {
			t.Errorf("%s got %d calls", each.Address, calls)
		}
	}
}

func TestABackendThatDoesNotServeGetsNothingUntilItDoes(t *testing.T) {
	ill, well := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, nil, "--backend", ill.Address, "--backend", well.Address)
	g.waitUntilServing(t, 2)
	ill.Health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	g.waitUntilServing(t, 1)
	for range 4 {
		g.post(t, gatewaytest.Pair)
	}
	if calls := ill.Calls.Load(); calls != 0 {
		t.Errorf("it got %d calls", calls)
	}
	ill.Health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	g.waitUntilServing(t, 2)
	g.post(t, gatewaytest.Pair)
	g.post(t, gatewaytest.Pair)
	if calls := ill.Calls.Load(); calls != 1 {
		t.Errorf("it got %d calls of 2", calls)
	}
}

func TestIfNoneServesTheAnswerOfThoseThatAreThereCounts(t *testing.T) {
	starting := gatewaytest.StartDouble(t, func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) {
		return nil, status.Error(codes.Unavailable, "the server is starting")
	}, gatewaytest.DoubleOptions{})
	starting.Health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	g := start(t, nil, "--backend", starting.Address)
	gatewaytest.WaitUntil(t, "it is connected", func() bool { return len(g.Pool.Candidates.Load().RPC) == 1 })
	g.post(t, "{}").isRefusal(t, 503, 3001, "the server is starting")
	if got := g.ask(t, "GET", "/health/ready", ""); got.status != 503 {
		t.Errorf("ready: %d", got.status)
	}
}

func TestWithoutABackendThatIsSaidAtOnce(t *testing.T) {
	nobody := freeAddress(t)
	g := start(t, nil, "--backend", nobody)
	g.post(t, "{}").isRefusal(t, 503, 3001, "no backend is up: "+nobody+": ")
	gatewaytest.WaitUntil(t, "the reason is known", func() bool {
		return strings.Contains(g.post(t, "{}").response(t).ErrMsg, "connection refused")
	})
	gatewaytest.WantIn(t, g.log.String(), "WARNING backend "+nobody+" gets no requests: ", "connection refused")
}

// freeAddress returns an address at which nobody listens, nor anybody can: it is taken.
func freeAddress(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
}

func TestABackendThatComesBackIsAskedAgain(t *testing.T) {
	for _, hasNoHealth := range []bool{false, true} {
		first, other := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{HasNoHealth: hasNoHealth}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
		g := start(t, nil, "--backend", first.Address, "--backend", other.Address)
		g.waitUntilServing(t, 2)
		first.Server.Stop()
		g.waitUntilServing(t, 1)
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		again := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{At: first.RPC.Address, HasNoHealth: hasNoHealth})
		g.waitUntilServing(t, 2)
		g.post(t, gatewaytest.Pair)
		g.post(t, gatewaytest.Pair)
		if calls := again.Calls.Load(); calls != 1 {
			t.Errorf("it got %d calls of 2", calls)
		}
		gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, `pipeline_gateway_backend_up{backend="`+first.Address+`"} 1`)
	}
}

func TestACallThatNeverLeftGoesToAnotherBackend(t *testing.T) {
	gone, there := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, nil, "--backend", gone.Address, "--backend", there.Address)
	g.waitUntilServing(t, 2)
	both := g.Pool.Candidates.Load()
	gone.Server.Stop()
	g.waitUntilServing(t, 1)
	g.Pool.StopWatching()
	g.Pool.Watchers.Wait()
	g.Pool.Candidates.Store(both) // as it is for a moment after a backend is gone
	for range 4 {
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if calls := there.Calls.Load(); calls != 4 {
		t.Errorf("the other got %d calls of 4", calls)
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, "pipeline_gateway_retries_total 2")
}

func TestACallThatABackendMayHaveSeenIsNotRepeated(t *testing.T) {
	entered := make(chan *gatewaytest.Double, 2)
	var doubles [2]*gatewaytest.Double
	for at := range doubles {
		doubles[at] = gatewaytest.StartDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
			entered <- doubles[at]
			<-ctx.Done()
			return nil, ctx.Err()
		}, gatewaytest.DoubleOptions{})
	}
	g := start(t, nil, "--backend", doubles[0].Address, "--backend", doubles[1].Address)
	g.waitUntilServing(t, 2)
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	(<-entered).Server.Stop()
	(<-answered).isRefusal(t, 503, 3001, "")
	if calls := doubles[0].Calls.Load() + doubles[1].Calls.Load(); calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

func TestManyCallersAtOnceGetTheirOwnAnswers(t *testing.T) {
	doubles := []*gatewaytest.Double{gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{Server: []grpc.ServerOption{grpc.MaxConcurrentStreams(2)}})}
	g := start(t, nil, "--backend", doubles[0].Address, "--backend", doubles[1].Address)
	g.waitUntilServing(t, 2)
	var callers sync.WaitGroup
	for number := range 16 {
		callers.Go(func() {
			text := strings.Repeat(string(rune('a'+number)), 100+number*1000)
			for range 10 {
				got := g.post(t, `{"key":["k"],"value":["`+text+`"]}`)
				if got.status != 200 || got.response(t).Value[0] != text {
					t.Errorf("%d: %.100s", number, got.body)
				}
			}
		})
	}
	callers.Wait()
}

func TestAMessageThatGrewBeyondTheLimitIsNotSent(t *testing.T) {
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, limited(1000), "--backend", backend.Address)
	g.waitUntilServing(t, 1)
	grows := `{"tensors":[{"float64_data":[0` + strings.Repeat(",0", 300) + `]}]}`
	g.post(t, grows).isRefusal(t, 413, 8000, "(1000 bytes)")
	if calls := backend.Calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

func TestMessagesOfManyMegabytesPassBothWays(t *testing.T) {
	large := gatewaytest.DoubleOptions{Server: []grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 20)}}
	g := startReady(t, "--max-json-bytes", "30000000", "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, large).Address)
	text := strings.Repeat("x", 20<<20)
	got := g.post(t, `{"key":["k"],"value":["`+text+`"]}`)
	if got.status != 200 || got.response(t).Value[0] != text {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
}

func TestNobodyIsLetInBeforeEveryBackendIsKnown(t *testing.T) {
	cfg := configOf(t, "--backend", "127.0.0.1:1", "--backend", "127.0.0.1:2")
	backends, err := upstream.NewPool(cfg, connectTo(cfg), logging.New(io.Discard), metrics.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backends.Close)
	isKnown := func() bool {
		select {
		case <-backends.Known:
			return true
		default:
			return false
		}
	}
	one, other := backends.Backends()[0], backends.Backends()[1]
	backends.Update(one, upstream.Health{State: upstream.StateDown, Reason: "refused"})
	backends.Update(one, upstream.Health{State: upstream.StateServing})
	if isKnown() {
		t.Error("of one backend nothing is known")
	}
	backends.Update(other, upstream.Health{State: upstream.StateDown, Reason: "refused"})
	if !isKnown() {
		t.Error("of both backends something is known")
	}
}

func TestRequestsGoRoundWhateverElsePassesBetweenThem(t *testing.T) {
	var web [2]atomic.Int64
	doubles := []*gatewaytest.Double{gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})}
	args := []string{"--backend-metrics"}
	for at, each := range doubles {
		port := gatewaytest.StartWeb(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { web[at].Add(1) }))
		args = append(args, "--backend", each.Address+"/"+port)
	}
	g := start(t, nil, args...)
	g.waitUntilServing(t, 2)
	for range 10 {
		g.post(t, gatewaytest.Pair)
		g.ask(t, "GET", "/v2/health/live", "")
	}
	for at, each := range doubles {
		if each.Calls.Load() != 5 || web[at].Load() != 5 {
			t.Errorf("backend %d: %d inferences, %d others", at, each.Calls.Load(), web[at].Load())
		}
	}
	for range 10 {
		g.ask(t, "GET", "/metrics", "")
		g.ask(t, "GET", "/v2/health/live", "")
	}
	if web[0].Load() != 15 || web[1].Load() != 15 {
		t.Errorf("beside scrapes: %d and %d", web[0].Load(), web[1].Load())
	}
}
