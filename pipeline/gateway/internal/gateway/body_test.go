package gateway

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/pipelinepb"
)

func limited(maxBytes int64) func(*config.Config) {
	return func(cfg *config.Config) { cfg.MaxMessageBytes = maxBytes }
}

func TestABodyAtTheLimitIsTakenAndOneAboveItIsNot(t *testing.T) {
	g, backend := startEcho(t, limited(1000))
	most := `{"key":[],"x":"` + strings.Repeat("x", 1000-17) + `"}`
	if got := g.post(t, most); got.status != 200 {
		t.Errorf("%d bytes: %d %s", len(most), got.status, got.body)
	}
	chunks := func(text string) *http.Request {
		request := newRequest(t, "POST", g.url+"/svc/p", "")
		request.Body, request.ContentLength = io.NopCloser(strings.NewReader(text)), -1
		return request
	}
	if got := g.do(t, chunks(most)); got.status != 200 {
		t.Errorf("%d bytes in chunks: %d %s", len(most), got.status, got.body)
	}
	text := "the request is larger than max_message_bytes (1000 bytes)"
	g.post(t, most+" ").isRefusal(t, 413, 8000, text)
	g.do(t, chunks(most+" ")).isRefusal(t, 413, 8000, text)
	if calls := backend.Calls.Load(); calls != 2 {
		t.Errorf("%d calls", calls)
	}
}

func TestABodyThatIsTooLargeIsRefusedBeforeItIsSent(t *testing.T) {
	g, _ := startEcho(t, limited(1000))
	for _, header := range []string{"", "Expect: 100-continue\r\n"} {
		got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\n"+header+"Content-Length: 1001\r\n\r\n")
		gatewaytest.WantIn(t, got, "HTTP/1.1 413 Request Entity Too Large\r\n", "Connection: close\r\n", "(1000 bytes)")
	}
}

func TestAnAnswerBeforeTheBodyEndsTheConnection(t *testing.T) {
	g, _ := startEcho(t, nil)
	for target, status := range map[string]string{"PUT /svc/p": "405", "POST /nowhere": "404", "POST /health/x": "404"} {
		got := g.raw(t, target+" HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n")
		gatewaytest.WantIn(t, got, "HTTP/1.1 "+status, "Connection: close\r\n")
		got = g.raw(t, target+" HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}GET /health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		gatewaytest.WantIn(t, got, "HTTP/1.1 "+status, `{"status":"ok"}`)
	}
}

func TestACallerThatSendsItAllBeforeItReadsSeesWhyItWasRefused(t *testing.T) {
	g, _ := startEcho(t, limited(1000))
	size := 20 << 20 // more than the system buffers
	got := g.raw(t, fmt.Sprintf("POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", size)+strings.Repeat("x", size))
	gatewaytest.WantIn(t, got, "HTTP/1.1 413 ")
}

func TestASlowBodyIsRefused(t *testing.T) {
	g, _ := startEcho(t, func(cfg *config.Config) { cfg.Patience = 30 * time.Millisecond })
	got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{")
	gatewaytest.WantIn(t, got, "HTTP/1.1 408 Request Timeout\r\n", "Connection: close\r\n", "the request's body did not arrive within 0.03 s", `"err_no":6000`)
}

func TestTheTimeForABodyIsNotTheTimeForTheAnswer(t *testing.T) {
	release := make(chan struct{})
	backend := gatewaytest.StartDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
		select {
		case <-release:
			return &pipelinepb.Response{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, gatewaytest.DoubleOptions{})
	patience := 40 * time.Millisecond
	g := start(t, func(cfg *config.Config) { cfg.Patience = patience }, "--backend", backend.Address)
	g.waitUntilServing(t, 1)
	time.AfterFunc(5*patience, func() { close(release) })
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestABodyThatIsNoHTTPIsRefused(t *testing.T) {
	g, _ := startEcho(t, nil)
	head := "POST /svc/p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	gatewaytest.WantIn(t, g.raw(t, head+"2\r\n{}\r\nz\r\n"), "HTTP/1.1 400 ", "Connection: close", "this is not a valid HTTP/1.1 request: ")
	gatewaytest.WantIn(t, g.raw(t, head+"0\r\nA: "+strings.Repeat("x", 1<<17)), "HTTP/1.1 431 ", "header fields are longer")
}

func TestPackedBodiesAreUnpacked(t *testing.T) {
	g, _ := startEcho(t, limited(1000))
	for header, encoding := range map[string]string{"gzip": "gzip", "GZIP": "gzip", "x-gzip": "gzip", "deflate": "deflate"} {
		got := g.post(t, gatewaytest.Packed(t, encoding, gatewaytest.Pair), "Content-Encoding", header)
		if got.status != 200 || len(got.response(t).Key) != 1 {
			t.Errorf("%s: %d %s", header, got.status, got.body)
		}
	}
}

func TestABombIsNotUnpackedBeyondTheLimit(t *testing.T) {
	g, _ := startEcho(t, limited(100_000))
	for _, encoding := range []string{"gzip", "deflate"} {
		bomb := gatewaytest.Packed(t, encoding, strings.Repeat(" ", 16<<20))
		g.post(t, bomb, "Content-Encoding", encoding).isRefusal(t, 413, 8000, "(100000 bytes)")
	}
}

func TestBrokenPackingIsRefused(t *testing.T) {
	g, backend := startEcho(t, nil)
	whole := gatewaytest.Packed(t, "gzip", gatewaytest.Pair)
	for _, body := range []string{
		whole[:len(whole)-1], whole[:4], "{}", whole + "garbage", whole + whole, gatewaytest.Packed(t, "deflate", gatewaytest.Pair),
		whole[:len(whole)-5] + "\x00\x00\x00\x00\x00",
	} {
		g.post(t, body, "Content-Encoding", "gzip").isRefusal(t, 400, 8000, "not valid gzip")
	}
	g.post(t, "", "Content-Encoding", "gzip").isRefusal(t, 400, 8000, "not valid gzip")
	g.post(t, "{}", "Content-Encoding", "br").isRefusal(t, 415, 8000, "send gzip, deflate or none")
	if calls := backend.Calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

func TestAnswersArePackedForWhoAcceptsIt(t *testing.T) {
	g, _ := startEcho(t, nil, "--gzip-min-bytes", "200")
	large := `{"key":["a"],"value":["` + strings.Repeat("x", 10_000) + `"]}`
	got := g.post(t, large, "Accept-Encoding", "br, gzip")
	if got.header.Get("Content-Encoding") != "gzip" || got.header.Get("Vary") != "Accept-Encoding" || len(got.body) > 1000 {
		t.Fatalf("%v, %d bytes", got.header, len(got.body))
	}
	reader, err := gzip.NewReader(strings.NewReader(got.body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(reader)
	if err != nil || len(plain) < 10_000 {
		t.Errorf("%d bytes, %v", len(plain), err)
	}
	for _, plain := range []reply{g.post(t, large), g.post(t, large, "Accept-Encoding", "gzip;q=0"), g.post(t, gatewaytest.Pair, "Accept-Encoding", "gzip")} {
		if plain.header.Get("Content-Encoding") != "" || len(plain.response(t).Key) != 1 {
			t.Errorf("%v", plain.header)
		}
	}
}

func TestWhatUnpacksToNothingIsTaken(t *testing.T) {
	g, _ := startEcho(t, nil)
	for _, encoding := range []string{"gzip", "deflate"} {
		for range 20 {
			if got := g.post(t, gatewaytest.Packed(t, encoding, ""), "Content-Encoding", encoding); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
	}
}

func TestHeadsThatServersReadInTwoWaysAreRefused(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	plain, backend := startEcho(t, nil)
	secure, _ := startEcho(t, nil, "--tls-cert", cert, "--tls-key", key)
	head := "POST /svc/p HTTP/1.1\r\nHost: h\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(gatewaytest.Pair))
	for what, bad := range map[string]string{
		"it has a Content-Length beside chunks": "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"it has two Content-Lengths":            length + length + "\r\n" + gatewaytest.Pair,
		"a header field has two lines":          length + "A: b\r\n c\r\n\r\n" + gatewaytest.Pair,
		"a line of its head ends without CR":    length + "A: b\n\r\n" + gatewaytest.Pair,
	} {
		for _, ask := range []func(string) string{
			func(sent string) string { return plain.raw(t, sent) },
			func(sent string) string { return secure.rawTLS(t, trusted, sent) },
		} {
			got := ask(head + length + "\r\n" + gatewaytest.Pair + head + bad) // behind a good one
			if strings.Count(got, "HTTP/1.1 200 ") != 1 || strings.Count(got, "HTTP/1.1 400 ") != 1 {
				t.Errorf("%s: %q", what, got)
			}
			gatewaytest.WantIn(t, got, "this is not a valid HTTP/1.1 request: "+what, "Connection: close\r\n")
		}
	}
	if calls := backend.Calls.Load(); calls != 4 {
		t.Errorf("%d calls", calls)
	}
}

func TestHTTPIsNotSpokenWhereTLSIs(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	g, _ := startEcho(t, nil, "--tls-cert", cert, "--tls-key", key)
	gatewaytest.WantIn(t, g.raw(t, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"), "HTTP/1.1 400 ", "this port speaks TLS")
	gatewaytest.WantIn(t, g.rawTLS(t, trusted, "garbage\r\n\r\n"), "HTTP/1.1 400 ", `"err_no":8000`)
}
