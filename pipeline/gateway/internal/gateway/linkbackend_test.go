package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/pipelinepb"
)

// servingLink returns the --backend of a link that is answered.
func servingLink(t *testing.T, answer gatewaytest.Answerer) string {
	t.Helper()
	server := gatewaytest.StartLinkServer(t, "")
	go server.Serve(answer)
	return config.LinkScheme + server.Path
}

func TestAGatewayAsksOverALink(t *testing.T) {
	g := startReady(t, "--backend", servingLink(t, gatewaytest.Echo))
	got := g.post(t, gatewaytest.Pair)
	if got.status != 200 || got.response(t).Value[0] != "1" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestRequestsGoRoundBetweenLinksAndOthers(t *testing.T) {
	var calls [2]atomic.Int64
	counting := func(at int) gatewaytest.Answerer {
		return func(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
			calls[at].Add(1)
			return gatewaytest.Echo(ctx, request)
		}
	}
	g := start(t, nil, "--backend", servingLink(t, counting(0)), "--backend", gatewaytest.StartDouble(t, counting(1), gatewaytest.DoubleOptions{}).Address)
	g.waitUntilServing(t, 2)
	for range 10 {
		g.post(t, gatewaytest.Pair)
	}
	if calls[0].Load() != 5 || calls[1].Load() != 5 {
		t.Errorf("%d and %d calls", calls[0].Load(), calls[1].Load())
	}
}

func TestALinkThatIsGoneIsNotAskedAndOthersAre(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, nil, "--backend", config.LinkScheme+server.Path, "--backend", servingLink(t, gatewaytest.Echo))
	peer := server.Peer(t, 1)
	g.waitUntilServing(t, 2)
	both := g.Pool.Candidates.Load()
	_ = peer.Raw.Close()
	g.waitUntilServing(t, 1)
	g.Pool.Candidates.Store(both) // as it is for a moment after a backend is gone
	for range 4 {
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, "pipeline_gateway_retries_total 2")
}

func TestASilentLinkIsGivenUpAfterTheDeadlineAndTheSlack(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, nil, "--backend", config.LinkScheme+server.Path, "--slack", "1ms")
	peer := server.Peer(t, 1)
	g.waitUntilServing(t, 1)
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair, "Grpc-Timeout", "10m") }()
	if asked := peer.Asked(); asked.Timeout > 10*time.Millisecond || asked.Timeout < 0 {
		t.Errorf("asked with %v", asked.Timeout)
	}
	gatewaytest.Soon(t, "an answer", answered).isRefusal(t, 504, 6000, "deadline")
	if got := peer.Hear(); got.Kind != frame.Reset {
		t.Errorf("heard %+v", got)
	}
}

func TestALinkHearsOfACallerThatLeaves(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, nil, "--backend", config.LinkScheme+server.Path)
	peer := server.Peer(t, 1)
	g.waitUntilServing(t, 1)
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		request := newRequest(t, "POST", g.url+"/svc/prediction", gatewaytest.Pair).WithContext(ctx)
		if answer, err := http.DefaultClient.Do(request); err == nil {
			_ = answer.Body.Close()
		}
	}()
	id := peer.Asked().ID
	leave()
	if got := peer.Hear(); got.Kind != frame.Reset || got.ID != id {
		t.Errorf("heard %+v", got)
	}
}

func TestARequestThatAServerTookAlongIsNotRepeated(t *testing.T) {
	servers := []*gatewaytest.LinkServer{gatewaytest.StartLinkServer(t, ""), gatewaytest.StartLinkServer(t, "")}
	g := start(t, nil, "--backend", config.LinkScheme+servers[0].Path, "--backend", config.LinkScheme+servers[1].Path)
	peers := []*gatewaytest.LinkPeer{servers[0].Peer(t, 1), servers[1].Peer(t, 1)}
	g.waitUntilServing(t, 2)
	asked := make(chan *gatewaytest.LinkPeer, 2)
	for _, peer := range peers {
		go func() {
			if got, err := peer.Message(); err == nil && got.Kind == frame.Open {
				asked <- peer
			}
		}()
	}
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	_ = gatewaytest.Soon(t, "a request", asked).Raw.Close()
	gatewaytest.Soon(t, "an answer", answered).isRefusal(t, 503, 3001, "went away with the request")
	if len(asked) != 0 {
		t.Error("the other one was asked too")
	}
}
