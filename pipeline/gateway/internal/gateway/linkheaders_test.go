package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
)

func TestALinkTellsTheHeadersIfTheServerWantsThem(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, nil, "--backend", config.LinkScheme+server.Path)
	peer := gatewaytest.HeadedPeer(t, server)
	g.waitUntilServing(t, 1)
	const head = "POST /svc/p HTTP/1.1\r\nHost: example:99\r\nConnection: x-hop, close\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n" +
		"Proxy-Authorization: secret\r\nX-User: anna\r\nX-User: \xe9va\r\nX-Empty:\r\nTraceparent: t\r\nAuthorization: own\r\n" +
		"X-Forwarded-For: 10.9.9.9\r\nX-Real-Ip: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\nContent-Length: 2\r\n\r\n{}"
	answered := make(chan string, 1)
	go func() { answered <- g.raw(t, head) }()
	asked := peer.Asked()
	peer.Answer(asked.ID, gatewaytest.ResponseOf("there"))
	gatewaytest.WantIn(t, gatewaytest.Soon(t, "an answer", answered), "HTTP/1.1 200 ", "there")
	told := http.Header{}
	for at := 0; at < len(asked.Headers); at += 2 {
		told.Add(asked.Headers[at], asked.Headers[at+1])
	}
	for name, want := range map[string][]string{
		"X-User": {"anna", "\xe9va"}, "X-Empty": {""}, "Traceparent": {"t"}, "Authorization": {"own"}, "Host": {"example:99"},
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"example:99"}, "X-Forwarded-Proto": {"http"},
		"Connection": nil, "X-Hop": nil, "Keep-Alive": nil, "Te": nil, "Proxy-Authorization": nil, "X-Real-Ip": nil, "Forwarded": nil,
	} {
		if got := told[name]; !slices.Equal(got, want) {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if asked.Trace != "t" {
		t.Errorf("the trace is %q", asked.Trace)
	}
}

func TestHeadersThatALinkDoesNotTakeAreTheDoorsOrRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		isOver bool
	}{{"with a door", true}, {"without", false}} {
		server := gatewaytest.StartLinkServer(t, "")
		address := config.LinkScheme + server.Path
		if test.isOver {
			address += "," + gatewaytest.StartUnixWeb(t, http.HandlerFunc(told))
		}
		g := start(t, nil, "--backend", address)
		gatewaytest.HeadedPeer(t, server)
		g.waitUntilServing(t, 1)
		got := g.post(t, gatewaytest.Pair, "Cookie", strings.Repeat("c", frame.MaxMetadataBytes))
		if test.isOver {
			if got.status != http.StatusTeapot {
				t.Errorf("%d %s", got.status, got.body)
			}
			gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, `handed_over_total{reason="metadata"} 1`)
			continue
		}
		got.isRefusal(t, 431, 8000, "a link takes 32768")
	}
}
