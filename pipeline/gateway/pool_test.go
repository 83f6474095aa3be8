package main

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

	"pipeline/gateway/pipelinepb"
)

func TestRequestsGoRound(t *testing.T) {
	doubles := []*double{startDouble(t, echo, doubleOptions{}), startDouble(t, echo, doubleOptions{isUnix: true}), startDouble(t, echo, doubleOptions{hasNoHealth: true})}
	g := start(t, nil, "--backend", doubles[0].address, "--backend", doubles[1].address, "--backend", doubles[2].address)
	g.waitUntilServing(t, 3)
	for range 30 {
		if got := g.post(t, pair); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for _, each := range doubles {
		if calls := each.calls.Load(); calls != 10 {
			t.Errorf("%s got %d calls", each.address, calls)
		}
	}
}

func TestABackendThatDoesNotServeGetsNothingUntilItDoes(t *testing.T) {
	ill, well := startDouble(t, echo, doubleOptions{}), startDouble(t, echo, doubleOptions{})
	g := start(t, nil, "--backend", ill.address, "--backend", well.address)
	g.waitUntilServing(t, 2)
	ill.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	g.waitUntilServing(t, 1)
	for range 4 {
		g.post(t, pair)
	}
	if calls := ill.calls.Load(); calls != 0 {
		t.Errorf("it got %d calls", calls)
	}
	ill.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	g.waitUntilServing(t, 2)
	g.post(t, pair)
	g.post(t, pair)
	if calls := ill.calls.Load(); calls != 1 {
		t.Errorf("it got %d calls of 2", calls)
	}
}

func TestIfNoneServesTheAnswerOfThoseThatAreThereCounts(t *testing.T) {
	starting := startDouble(t, func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) {
		return nil, status.Error(codes.Unavailable, "the server is starting")
	}, doubleOptions{})
	starting.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	g := start(t, nil, "--backend", starting.address)
	waitUntil(t, "it is connected", func() bool { return len(g.pool.candidates.Load().rpc) == 1 })
	g.post(t, "{}").isRefusal(t, 503, 3001, "the server is starting")
	if got := g.ask(t, "GET", "/health/ready", ""); got.status != 503 {
		t.Errorf("ready: %d", got.status)
	}
}

func TestWithoutABackendThatIsSaidAtOnce(t *testing.T) {
	nobody := freeAddress(t)
	g := start(t, nil, "--backend", nobody)
	g.post(t, "{}").isRefusal(t, 503, 3001, "no backend is up: "+nobody+": ")
	waitUntil(t, "the reason is known", func() bool {
		return strings.Contains(g.post(t, "{}").response(t).ErrMsg, "connection refused")
	})
	wantIn(t, g.log.String(), "WARNING backend "+nobody+" gets no requests: ", "connection refused")
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
		first, other := startDouble(t, echo, doubleOptions{hasNoHealth: hasNoHealth}), startDouble(t, echo, doubleOptions{})
		g := start(t, nil, "--backend", first.address, "--backend", other.address)
		g.waitUntilServing(t, 2)
		first.server.Stop()
		g.waitUntilServing(t, 1)
		if got := g.post(t, pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		again := startDouble(t, echo, doubleOptions{at: first.rpc.address, hasNoHealth: hasNoHealth})
		g.waitUntilServing(t, 2)
		g.post(t, pair)
		g.post(t, pair)
		if calls := again.calls.Load(); calls != 1 {
			t.Errorf("it got %d calls of 2", calls)
		}
		wantIn(t, g.ask(t, "GET", "/metrics", "").body, `pipeline_gateway_backend_up{backend="`+first.address+`"} 1`)
	}
}

func TestACallThatNeverLeftGoesToAnotherBackend(t *testing.T) {
	gone, there := startDouble(t, echo, doubleOptions{}), startDouble(t, echo, doubleOptions{})
	g := start(t, nil, "--backend", gone.address, "--backend", there.address)
	g.waitUntilServing(t, 2)
	both := g.pool.candidates.Load()
	gone.server.Stop()
	g.waitUntilServing(t, 1)
	g.pool.stopWatching()
	g.pool.watchers.Wait()
	g.pool.candidates.Store(both) // as it is for a moment after a backend is gone
	for range 4 {
		if got := g.post(t, pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if calls := there.calls.Load(); calls != 4 {
		t.Errorf("the other got %d calls of 4", calls)
	}
	wantIn(t, g.ask(t, "GET", "/metrics", "").body, "pipeline_gateway_retries_total 2")
}

func TestACallThatABackendMayHaveSeenIsNotRepeated(t *testing.T) {
	entered := make(chan *double, 2)
	var doubles [2]*double
	for at := range doubles {
		doubles[at] = startDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
			entered <- doubles[at]
			<-ctx.Done()
			return nil, ctx.Err()
		}, doubleOptions{})
	}
	g := start(t, nil, "--backend", doubles[0].address, "--backend", doubles[1].address)
	g.waitUntilServing(t, 2)
	answered := make(chan reply)
	go func() { answered <- g.post(t, pair) }()
	(<-entered).server.Stop()
	(<-answered).isRefusal(t, 503, 3001, "")
	if calls := doubles[0].calls.Load() + doubles[1].calls.Load(); calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

func TestManyCallersAtOnceGetTheirOwnAnswers(t *testing.T) {
	doubles := []*double{startDouble(t, echo, doubleOptions{}), startDouble(t, echo, doubleOptions{server: []grpc.ServerOption{grpc.MaxConcurrentStreams(2)}})}
	g := start(t, nil, "--backend", doubles[0].address, "--backend", doubles[1].address)
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
	backend := startDouble(t, echo, doubleOptions{})
	g := start(t, limited(1000), "--backend", backend.address)
	g.waitUntilServing(t, 1)
	grows := `{"tensors":[{"float64_data":[0` + strings.Repeat(",0", 300) + `]}]}`
	g.post(t, grows).isRefusal(t, 413, 8000, "(1000 bytes)")
	if calls := backend.calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

func TestMessagesOfManyMegabytesPassBothWays(t *testing.T) {
	large := doubleOptions{server: []grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 20)}}
	g := startReady(t, "--max-json-bytes", "30000000", "--backend", startDouble(t, echo, large).address)
	text := strings.Repeat("x", 20<<20)
	got := g.post(t, `{"key":["k"],"value":["`+text+`"]}`)
	if got.status != 200 || got.response(t).Value[0] != text {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
}

func TestNobodyIsLetInBeforeEveryBackendIsKnown(t *testing.T) {
	cfg := configOf(t, "--backend", "127.0.0.1:1", "--backend", "127.0.0.1:2")
	backends, err := newPool(cfg, newLogger(io.Discard), newStats())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backends.close)
	isKnown := func() bool {
		select {
		case <-backends.known:
			return true
		default:
			return false
		}
	}
	one, other := backends.backends[0], backends.backends[1]
	backends.update(one, health{stateDown, "refused"})
	backends.update(one, health{state: stateServing})
	if isKnown() {
		t.Error("of one backend nothing is known")
	}
	backends.update(other, health{stateDown, "refused"})
	if !isKnown() {
		t.Error("of both backends something is known")
	}
}

func TestRequestsGoRoundWhateverElsePassesBetweenThem(t *testing.T) {
	var web [2]atomic.Int64
	doubles := []*double{startDouble(t, echo, doubleOptions{}), startDouble(t, echo, doubleOptions{})}
	args := []string{"--backend-metrics"}
	for at, each := range doubles {
		port := startWeb(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { web[at].Add(1) }))
		args = append(args, "--backend", each.address+"/"+port)
	}
	g := start(t, nil, args...)
	g.waitUntilServing(t, 2)
	for range 10 {
		g.post(t, pair)
		g.ask(t, "GET", "/v2/health/live", "")
	}
	for at, each := range doubles {
		if each.calls.Load() != 5 || web[at].Load() != 5 {
			t.Errorf("backend %d: %d inferences, %d others", at, each.calls.Load(), web[at].Load())
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
