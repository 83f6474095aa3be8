package gateway

import (
	"net/http"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
)

func TestARequestOfAWebPageFromElsewhereIsRefused(t *testing.T) {
	g, backend := startEcho(t, nil)
	g.post(t, gatewaytest.Pair, "Origin", "http://x").isRefusal(t, 403, 3002, "a web page from 'http://x' may not ask this server")
	if got := g.post(t, gatewaytest.Pair, "Origin", "http://x", "Content-Type", "application/json"); got.status != 200 || backend.Calls.Load() != 1 {
		t.Errorf("%d, %d calls", got.status, backend.Calls.Load())
	}
	both := startBoth(t, told, nil)
	if got := both.post(t, gatewaytest.Pair, "Origin", "http://x"); got.status != http.StatusTeapot || got.body != gatewaytest.Pair {
		t.Errorf("the door: %d %s", got.status, got.body)
	}
}
