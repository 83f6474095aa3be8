package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestHTTP2WithoutTLSIsSpokenOnRequest(t *testing.T) {
	client := func() *http.Client {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		return &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	}
	g, _ := startEcho(t, limited(1000), "--h2c")
	got := doWith(t, client(), newRequest(t, "POST", g.url+"/svc/p", pair))
	if got.status != 200 || len(got.response(t).Key) != 1 {
		t.Errorf("%d %s", got.status, got.body)
	}
	doWith(t, client(), newRequest(t, "POST", g.url+"/svc/p", strings.Repeat("x", 5000))).isRefusal(t, 413, 8000, "1000 bytes")
	doWith(t, client(), newRequest(t, "PUT", g.url+"/svc/p", pair)).isRefusal(t, 405, 3000, "use POST")
	if got := g.post(t, pair); got.status != 200 {
		t.Errorf("HTTP/1.1 beside it: %d", got.status)
	}
	without, _ := startEcho(t, nil)
	wantIn(t, without.raw(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "HTTP/1.1 400 ", "this is no valid HTTP/1.1 request", "close")
}

func TestAnOfferOfHTTP2IsDeclined(t *testing.T) {
	g, _ := startEcho(t, nil, "--h2c")
	got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"+
		"HTTP2-Settings: AAEAAEAA\r\nContent-Length: 2\r\n\r\n{}")
	wantIn(t, got, "HTTP/1.1 200 OK\r\n", `"err_no"`)
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
		wantIn(t, head, "HTTP/1.1 "+status, "connection: close", "content-type: application/json", fmt.Sprintf("content-length: %d", len(body)))
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
	waitUntil(t, "it is counted", func() bool {
		return strings.Contains(g.ask(t, "GET", "/metrics", "").body, `code="499"`)
	})
	if calls := backend.calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}
