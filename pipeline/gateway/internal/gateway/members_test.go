package gateway

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/pipelinepb"
)

// setTo makes backends the pool's list.
func (r *running) setTo(t *testing.T, addresses ...string) {
	t.Helper()
	var list []config.Backend
	for _, each := range addresses {
		backend, err := config.ParseRemote(each)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, backend)
	}
	r.Pool.Set(list)
}

// held answers when it is let, and says when it was asked.
func held(t *testing.T) (answer gatewaytest.Answerer, asked <-chan struct{}, let func()) {
	t.Helper()
	entered, release := make(chan struct{}, 64), make(chan struct{})
	let = sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	return func(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
		entered <- struct{}{}
		select {
		case <-release:
			return gatewaytest.Echo(ctx, request)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, entered, let
}

func TestABackendThatIsNewInTheListGetsItsShare(t *testing.T) {
	one, other := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", one.Address)
	g.setTo(t, one.Address, other.Address)
	g.waitUntilServing(t, 2)
	for range 4 {
		g.post(t, gatewaytest.Pair)
	}
	if one.Calls.Load() != 2 || other.Calls.Load() != 2 {
		t.Errorf("%d and %d calls", one.Calls.Load(), other.Calls.Load())
	}
	gatewaytest.WantIn(t, g.log.String(), "INFO backend "+other.Address+" is new in the list")
}

func TestABackendThatIsOutOfTheListEndsWhatItHas(t *testing.T) {
	answer, asked, let := held(t)
	gone, there := gatewaytest.StartDouble(t, answer, gatewaytest.DoubleOptions{}), gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", gone.Address)
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	gatewaytest.Soon(t, "a request", asked)
	g.setTo(t, there.Address)
	g.waitUntilServing(t, 1)
	for range 3 {
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body,
		`pipeline_gateway_backend_up{backend="`+gone.Address+`"} 0`, `pipeline_gateway_backend_pending{backend="`+gone.Address+`"} 1`)
	let()
	if got := gatewaytest.Soon(t, "its answer", answered); got.status != 200 || gone.Calls.Load() != 1 {
		t.Errorf("%d %s; %d calls", got.status, got.body, gone.Calls.Load())
	}
	gatewaytest.WaitUntil(t, "it is let go", func() bool {
		return !strings.Contains(g.ask(t, "GET", "/metrics", "").body, gone.Address)
	})
	gatewaytest.WantIn(t, g.log.String(), "it gets no new requests, and has 1", "is let go")
}

func TestTheGraceIsTheEndOfWhatABackendOutOfTheListHas(t *testing.T) {
	answer, asked, _ := held(t)
	gone := gatewaytest.StartDouble(t, answer, gatewaytest.DoubleOptions{})
	stuck := make(chan struct{})
	defer close(stuck)
	web := gatewaytest.StartWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	}))
	g := startReady(t, "--backend", gone.Address+"/"+web, "--grace", "1ms")
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	gatewaytest.Soon(t, "a request", asked)
	stream, err := http.Get(g.url + "/v2/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	g.setTo(t)
	gatewaytest.Soon(t, "an answer", answered).isRefusal(t, 503, 3001, "")
	if _, err := stream.Body.Read(make([]byte, 1)); err == nil {
		t.Error("the stream continues")
	}
	g.post(t, gatewaytest.Pair).isRefusal(t, 503, 3001, "the list of them is empty")
	gatewaytest.WantIn(t, g.log.String(), "is let go after 1ms: 2 requests and 0 sequences are broken off")
}

func TestAListThatChangesUnderLoadFailsNoRequest(t *testing.T) {
	var addresses []string
	for range 3 {
		addresses = append(addresses, gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	}
	g := startReady(t, "--backend", addresses[0])
	done := make(chan struct{})
	var callers sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: gatewaytest.Patience}
	for range 8 {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if got := doWith(t, client, newRequest(t, "POST", g.url+"/svc/prediction", gatewaytest.Pair)); got.status != 200 {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	for turn := range 30 {
		g.setTo(t, addresses[turn%3], addresses[(turn+1)%3])
		g.waitUntilServing(t, 2)
	}
	close(done)
	callers.Wait()
}

func TestABackendThatComesBackIntoTheListIsAnotherOne(t *testing.T) {
	answer, asked, let := held(t)
	backend := gatewaytest.StartDouble(t, answer, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address)
	first := g.Pool.Backends()[0]
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	gatewaytest.Soon(t, "a request", asked)
	g.setTo(t)
	g.setTo(t, backend.Address)
	g.waitUntilServing(t, 1)
	if g.Pool.Backends()[0] == first {
		t.Error("it is the same one")
	}
	let()
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	gatewaytest.WaitUntil(t, "the first one is let go", func() bool { return first.Gone().Err() != nil })
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
