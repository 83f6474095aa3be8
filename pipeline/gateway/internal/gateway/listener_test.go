package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
)

func TestHTTP2WithoutTLSIsSpokenOnRequest(t *testing.T) {
	client := func() *http.Client {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		return &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	}
	g, _ := startEcho(t, limited(1000), "--h2c")
	got := doWith(t, client(), newRequest(t, "POST", g.url+"/svc/p", gatewaytest.Pair))
	if got.status != 200 || len(got.response(t).Key) != 1 {
		t.Errorf("%d %s", got.status, got.body)
	}
	doWith(t, client(), newRequest(t, "POST", g.url+"/svc/p", strings.Repeat("x", 5000))).isRefusal(t, 413, 8000, "1000 bytes")
	doWith(t, client(), newRequest(t, "PUT", g.url+"/svc/p", gatewaytest.Pair)).isRefusal(t, 405, 3000, "use POST")
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("HTTP/1.1 beside it: %d", got.status)
	}
	without, _ := startEcho(t, nil)
	gatewaytest.WantIn(t, without.raw(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "HTTP/1.1 400 ", "this is not a valid HTTP/1.1 request", "close")
}

func TestAnOfferOfHTTP2IsDeclined(t *testing.T) {
	g, _ := startEcho(t, nil, "--h2c")
	got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"+
		"HTTP2-Settings: AAEAAEAA\r\nContent-Length: 2\r\n\r\n{}")
	gatewaytest.WantIn(t, got, "HTTP/1.1 200 OK\r\n", `"err_no"`)
}

func TestWhatIsNoHTTPIsRefusedInTheShapeOfAResponse(t *testing.T) {
	g, _ := startEcho(t, nil)
	for sent, status := range map[string]string{
		"garbage\r\n\r\n":                                                 "400 Bad Request",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc":                            "400 Bad Request",
		"POST /svc/p HTTP/9.9\r\n\r\n":                                    "400 Bad Request",
		"POST /svc/%zz HTTP/1.1\r\nHost: h\r\n\r\n":                       "400 Bad Request",
		"POST /svc/p HTTP/1.1\r\nHost: h\r\nA\x00: b\r\n\r\n":             "400 Bad Request",
		"POST /svc/p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\n\r\n": "400 Bad Request",
		"POST /svc/p HTTP/1.1\r\nA: " + strings.Repeat("x", 500_000):      "431 Request Header Fields Too Large",
		"POST /" + strings.Repeat("x", 500_000):                           "431 Request Header Fields Too Large",
	} {
		got := g.raw(t, sent)
		head, body, _ := strings.Cut(got, "\r\n\r\n")
		gatewaytest.WantIn(t, head, "HTTP/1.1 "+status, "connection: close", "content-type: application/json", fmt.Sprintf("content-length: %d", len(body)))
		reply{status: 0, body: body}.response(t)
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	g, _ := startEcho(t, nil)
	var sent strings.Builder
	for number := range 10 {
		body := fmt.Sprintf(`{"key":["n"],"value":["<%d>"]}`, number)
		closing := ""
		if number == 9 {
			closing = "Connection: close\r\n"
		}
		fmt.Fprintf(&sent, "POST /svc/p HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", closing, len(body), body)
	}
	got := g.raw(t, sent.String())
	last := -1
	for number := range 10 {
		at := strings.Index(got, fmt.Sprintf("<%d>", number))
		if at <= last {
			t.Fatalf("answer %d is at %d, behind %d", number, at, last)
		}
		last = at
	}
}

func TestACallerThatHangsUpAmidItsBodyIsNobody(t *testing.T) {
	g, backend := startEcho(t, nil)
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{")
	_ = conn.Close()
	gatewaytest.WaitUntil(t, "it is counted", func() bool {
		return strings.Contains(g.ask(t, "GET", "/metrics", "").body, `code="499"`)
	})
	if calls := backend.Calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

func TestHTTP2ThatCannotBeALineOfHTTP1IsRefused(t *testing.T) {
	asked := make(chan string, 99)
	g := startBoth(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r.RequestURI }, nil, "--h2c")
	caller := startH2(t, g.address)
	for at, fields := range [][]string{
		{":path", "/v2/x y"}, {":path", "/v2/x HTTP/1.1"}, {":path", "/v2/q?a b HTTP/1.0"}, {":path", "/v2/\xe9"},
		{":path", "/v2/\xff"}, {":path", "/svc/a b"}, {":method", "GET /v2/evil"}, {":authority", "a b"}, {":authority", "h/v2?"},
	} {
		caller.ask(uint32(1+2*at), "", fields...)
		if got := caller.status(); got != "400" {
			t.Errorf("%q: %s", fields, got)
		}
	}
	caller.ask(99, "", ":path", "/v2/x%20y?a=%C3%A9", ":method", "GET", ":authority", "[::1]:80")
	if got := caller.status(); got != "200" {
		t.Errorf("a proper one: %s", got)
	}
	if got := gatewaytest.Soon(t, "a request", asked); got != "/v2/x%20y?a=%C3%A9" || len(asked) != 0 {
		t.Errorf("the backend was asked for %q and %d others", got, len(asked))
	}
}
