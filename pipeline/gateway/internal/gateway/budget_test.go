package gateway

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pipeline/gateway/internal/codec"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/pipelinepb"
)

func TestWhoComesWhenTheBudgetIsUsedUpIsRefusedAndNotTheProbes(t *testing.T) {
	backend := startWaiting(t)
	g := start(t, func(cfg *config.Config) { cfg.MaxBufferedBytes = 2*memory.RequestBytes + 5000 }, "--backend", backend.Address)
	g.waitUntilServing(t, 1)
	done := make(chan reply)
	for range 2 {
		go func() { done <- g.post(t, gatewaytest.Pair) }()
		<-backend.entered
	}
	got := g.post(t, gatewaytest.Pair)
	got.isRefusal(t, 503, 3004, "--max-buffered-bytes")
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("%v", got.header)
	}
	if got := g.ask(t, "GET", "/health/ready", ""); got.status != 200 {
		t.Errorf("ready: %d", got.status)
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, fmt.Sprintf("pipeline_gateway_buffered_bytes %v", float64(g.Budget.Held.Load())))
	close(backend.release)
	<-done
	<-done
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestTensorsThatAreSmallAsTextWeighWhatTheyTake(t *testing.T) {
	for text, least := range map[string]int64{
		`{"tensors":[` + strings.Repeat(`{},`, 999) + `{}]}`:                         1000 * codec.TensorBytes,
		`{"tensors":[{"float64_data":[` + strings.Repeat("0,", 9999) + `0]}]}`:       80_000,
		`{"key":["` + strings.Repeat(`{,\"`, 1000) + `"]}`:                           4000,
		`{"key":[` + strings.Repeat(`"",`, 999) + `""]}`:                             16_000,
		`{"tensors":[{"str_data":[` + strings.Repeat(`"\\",`, 999) + `""]}],"a":[]}`: 16_000,
	} {
		weight := codec.WeightOf([]byte(text))
		if weight < least || weight > 2*least+int64(len(text))+4*codec.TensorBytes {
			t.Errorf("%.40s: %d, of %d", text, weight, least)
		}
	}
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, func(cfg *config.Config) { cfg.MaxBufferedBytes = 1 << 20 }, "--backend", backend.Address)
	g.waitUntilServing(t, 1)
	g.post(t, `{"tensors":[{}`+strings.Repeat(",{}", 5000)+`]}`).isRefusal(t, 413, 8000, "bytes of memory")
	if calls := backend.Calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

func TestAnAnswerThatThereIsNoRoomForIsRefused(t *testing.T) {
	large := func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) {
		return gatewaytest.ResponseOf(strings.Repeat("x", 1<<20)), nil
	}
	g := start(t, func(cfg *config.Config) { cfg.MaxBufferedBytes = 1 << 20 }, "--backend", gatewaytest.StartDouble(t, large, gatewaytest.DoubleOptions{}).Address)
	g.waitUntilServing(t, 1)
	g.post(t, gatewaytest.Pair).isRefusal(t, 500, 8000, "the answer takes about")
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
}

func TestJSONHasALimitOfItsOwn(t *testing.T) {
	g, _ := startEcho(t, nil, "--max-json-bytes", "1000")
	text := "the request is larger than max_json_bytes (1000 bytes)"
	long := `{"x":"` + strings.Repeat("x", 1000) + `"}`
	g.post(t, long).isRefusal(t, 413, 8000, text)
	g.post(t, gatewaytest.Packed(t, "gzip", long), "Content-Encoding", "gzip").isRefusal(t, 413, 8000, text)
	both := startBoth(t, told, nil, "--max-json-bytes", "1000")
	if got := both.ask(t, "POST", "/v2", long); got.body != long {
		t.Errorf("%d %s", got.status, got.body)
	}
}
