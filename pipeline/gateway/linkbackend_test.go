package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"pipeline/gateway/pipelinepb"
)

// servingLink returns the --backend of a link that is answered.
func servingLink(t *testing.T, answer answerer) string {
	t.Helper()
	server := startLinkServer(t, "")
	go server.serve(answer)
	return linkScheme + server.path
}

func TestAGatewayAsksOverALink(t *testing.T) {
	g := startReady(t, "--backend", servingLink(t, echo))
	got := g.post(t, pair)
	if got.status != 200 || got.response(t).Value[0] != "1" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestRequestsGoRoundBetweenLinksAndOthers(t *testing.T) {
	var calls [2]atomic.Int64
	counting := func(at int) answerer {
		return func(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
			calls[at].Add(1)
			return echo(ctx, request)
		}
	}
	g := start(t, nil, "--backend", servingLink(t, counting(0)), "--backend", startDouble(t, counting(1), doubleOptions{}).address)
	g.waitUntilServing(t, 2)
	for range 10 {
		g.post(t, pair)
	}
	if calls[0].Load() != 5 || calls[1].Load() != 5 {
		t.Errorf("%d and %d calls", calls[0].Load(), calls[1].Load())
	}
}

func TestALinkThatIsGoneIsNotAskedAndOthersAre(t *testing.T) {
	server := startLinkServer(t, "")
	g := start(t, nil, "--backend", linkScheme+server.path, "--backend", servingLink(t, echo))
	peer := server.peer(t, 1)
	g.waitUntilServing(t, 2)
	both := g.pool.candidates.Load()
	_ = peer.raw.Close()
	g.waitUntilServing(t, 1)
	g.pool.candidates.Store(both) // as it is for a moment after a backend is gone
	for range 4 {
		if got := g.post(t, pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	wantIn(t, g.ask(t, "GET", "/metrics", "").body, "pipeline_gateway_retries_total 2")
}

func TestASilentLinkIsGivenUpAfterTheDeadlineAndTheSlack(t *testing.T) {
	server := startLinkServer(t, "")
	g := start(t, nil, "--backend", linkScheme+server.path, "--slack", "1ms")
	peer := server.peer(t, 1)
	g.waitUntilServing(t, 1)
	answered := make(chan reply)
	go func() { answered <- g.post(t, pair, "Grpc-Timeout", "10m") }()
	if asked := peer.asked(); asked.timeout != 10*time.Millisecond {
		t.Errorf("asked with %v", asked.timeout)
	}
	soon(t, "an answer", answered).isRefusal(t, 504, 6000, "deadline")
	if got := peer.hear(); got.kind != frameCancel {
		t.Errorf("heard %+v", got)
	}
}

func TestALinkHearsOfACallerThatLeaves(t *testing.T) {
	server := startLinkServer(t, "")
	g := start(t, nil, "--backend", linkScheme+server.path)
	peer := server.peer(t, 1)
	g.waitUntilServing(t, 1)
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		request := newRequest(t, "POST", g.url+"/svc/prediction", pair).WithContext(ctx)
		if answer, err := http.DefaultClient.Do(request); err == nil {
			_ = answer.Body.Close()
		}
	}()
	id := peer.asked().id
	leave()
	if got := peer.hear(); got.kind != frameCancel || got.id != id {
		t.Errorf("heard %+v", got)
	}
}

func TestARequestThatAServerTookAlongIsNotRepeated(t *testing.T) {
	servers := []*linkServer{startLinkServer(t, ""), startLinkServer(t, "")}
	g := start(t, nil, "--backend", linkScheme+servers[0].path, "--backend", linkScheme+servers[1].path)
	peers := []*linkPeer{servers[0].peer(t, 1), servers[1].peer(t, 1)}
	g.waitUntilServing(t, 2)
	asked := make(chan *linkPeer, 2)
	for _, peer := range peers {
		go func() {
			if got, err := peer.message(); err == nil && got.kind == frameAsk {
				asked <- peer
			}
		}()
	}
	answered := make(chan reply)
	go func() { answered <- g.post(t, pair) }()
	_ = soon(t, "a request", asked).raw.Close()
	soon(t, "an answer", answered).isRefusal(t, 503, 3001, "went away with the request")
	if len(asked) != 0 {
		t.Error("the other one was asked too")
	}
}
