package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// headedPeer returns the server's end of a link on which the server wants headers.
func headedPeer(t *testing.T, server *linkServer) *linkPeer {
	t.Helper()
	peer := soon(t, "a connection", server.peers)
	peer.wantsHeaders = true
	peer.say(frameReady, 0, []byte{headedVersion, 1})
	return peer
}

func TestALinkTellsTheHeadersIfTheServerWantsThem(t *testing.T) {
	server := startLinkServer(t, "")
	g := start(t, nil, "--backend", linkScheme+server.path)
	peer := headedPeer(t, server)
	g.waitUntilServing(t, 1)
	const head = "POST /svc/p HTTP/1.1\r\nHost: example:99\r\nConnection: x-hop, close\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n" +
		"Proxy-Authorization: secret\r\nX-User: anna\r\nX-User: \xe9va\r\nX-Empty:\r\nTraceparent: t\r\nAuthorization: own\r\n" +
		"X-Forwarded-For: 10.9.9.9\r\nX-Real-Ip: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\nContent-Length: 2\r\n\r\n{}"
	answered := make(chan string, 1)
	go func() { answered <- g.raw(t, head) }()
	asked := peer.asked()
	peer.answer(asked.id, responseOf("there"))
	wantIn(t, soon(t, "an answer", answered), "HTTP/1.1 200 ", "there")
	told := http.Header{}
	for at := 0; at < len(asked.headers); at += 2 {
		told.Add(asked.headers[at], asked.headers[at+1])
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
	if asked.trace != "t" {
		t.Errorf("the trace is %q", asked.trace)
	}
}

func TestARequestThatNobodySentHasNoHeadersOnALink(t *testing.T) {
	server := startLinkServer(t, "")
	client := startLink(t, server.path)
	peer := headedPeer(t, server)
	client.reporting(t, stateServing)
	done := client.asking(t.Context(), "hello")
	asked := peer.asked()
	if len(asked.headers) != 1 || asked.headers[0] != "" || asked.request.Value[0] != "hello" {
		t.Errorf("asked %+v", asked)
	}
	peer.answer(asked.id, responseOf("there"))
	if got := soon(t, "an answer", done); got.err != nil {
		t.Error(got.err)
	}
}

func TestHeadersThatALinkDoesNotTakeAreTheDoorsOrRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		isOver bool
	}{{"with a door", true}, {"without", false}} {
		server := startLinkServer(t, "")
		address := linkScheme + server.path
		if test.isOver {
			address += "," + startUnixWeb(t, http.HandlerFunc(told))
		}
		g := start(t, nil, "--backend", address)
		headedPeer(t, server)
		g.waitUntilServing(t, 1)
		got := g.post(t, pair, "Cookie", strings.Repeat("c", mostFieldBytes))
		if test.isOver {
			if got.status != http.StatusTeapot {
				t.Errorf("%d %s", got.status, got.body)
			}
			wantIn(t, g.ask(t, "GET", "/metrics", "").body, `handed_over_total{reason="metadata"} 1`)
			continue
		}
		got.isRefusal(t, 431, 8000, "a link takes 32768")
	}
}
