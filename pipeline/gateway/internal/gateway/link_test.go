package gateway

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/upstream"
)

func TestALinkThatIsNotReadHoldsNothingOfWhoHasLeft(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, nil, "--backend", config.LinkScheme+server.Path, "--slack", "0s")
	server.Peer(t, 1) // which reads nothing
	g.waitUntilServing(t, 1)
	body := `{"value":["` + strings.Repeat("x", 1<<20) + `"]}`
	for range 20 {
		g.post(t, body, "Grpc-Timeout", "1m").isRefusal(t, 504, 6000, "deadline")
	}
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
	if calls, messages := g.Pool.Backends()[0].Upstream.(*upstream.Link).Held(); calls != 0 || messages > 8 { // words to the server
		t.Errorf("%d calls, %d messages", calls, messages)
	}
}

func TestAnAnswerThatThereIsNoRoomForIsNotKept(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, func(cfg *config.Config) { cfg.MaxBufferedBytes = 1 << 20 }, "--backend", config.LinkScheme+server.Path)
	peer := server.Peer(t, 1)
	g.waitUntilServing(t, 1)
	answered := make(chan reply)
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	asked := peer.Asked()
	go peer.Answer(asked.ID, gatewaytest.ResponseOf(strings.Repeat("x", 8<<20)))
	gatewaytest.Soon(t, "an answer", answered).isRefusal(t, 503, 3004, "--max-buffered-bytes")
	if got := peer.Hear(); got.Kind != frame.Reset || got.ID != asked.ID {
		t.Errorf("heard %+v", got)
	}
	go func() { answered <- g.post(t, gatewaytest.Pair) }()
	peer.Answer(peer.Asked().ID, gatewaytest.ResponseOf("next"))
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
}

func TestCallsOfAServerThatDoesNotReadGoElsewhereOrFail(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	other := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}) // which no heartbeat can be late for
	g := start(t, nil, "--backend", config.LinkScheme+server.Path, "--backend", other.Address, "--stall-timeout", "100ms")
	server.Peer(t, 1) // which reads nothing
	g.waitUntilServing(t, 2)
	large := `{"value":["` + strings.Repeat("x", 1<<20) + `"]}`
	var callers sync.WaitGroup
	var elsewhere, failed atomic.Int64
	for range 8 {
		callers.Go(func() {
			switch got := g.post(t, large); got.status {
			case 200:
				elsewhere.Add(1)
			case 503:
				got.isRefusal(t, 503, 3001, "stopped answering")
				failed.Add(1)
			default:
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	callers.Wait()
	if failed.Load() > 4 || elsewhere.Load() < 4 {
		t.Errorf("%d failed, %d went elsewhere", failed.Load(), elsewhere.Load())
	}
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
