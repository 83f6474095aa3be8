package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/gatewaytest"
)

// told answers with what it was sent.
func told(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Inference-Header-Content-Length", r.Header.Get("Inference-Header-Content-Length"))
	w.Header().Set("X-Told", strings.Join([]string{
		r.Method, r.RequestURI, r.Host, r.Header.Get("Content-Encoding"), r.Header.Get("Grpc-Timeout"),
		r.Header.Get("Connection") + r.Header.Get("Upgrade") + r.Header.Get("Keep-Alive"), r.Header.Get("User-Agent"),
	}, "|"))
	w.WriteHeader(http.StatusTeapot)
	_, _ = w.Write(body)
}

// startBoth runs a gateway in front of a server with both ports.
func startBoth(t *testing.T, web http.HandlerFunc, change func(*config.Config), args ...string) *running {
	t.Helper()
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, change, append(args, "--backend", backend.Address+"/"+gatewaytest.StartWeb(t, web))...)
	g.waitUntilServing(t, 1)
	return g
}

func TestOtherPathsPassAsTheyCame(t *testing.T) {
	g := startBoth(t, told, nil)
	for _, target := range []string{
		"/", "/v2", "/v2/models/a%2Fb/infer?x=%20;&y", "/page?", "/svc/", "//double/slash", "/%FF%FE/x", "/a/b/c", "/v2/x?a=b?c",
	} {
		sent := "POST " + target + " HTTP/1.1\r\nHost: example:99\r\nConnection: keep-alive, X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n" +
			"Inference-Header-Content-Length: 3\r\nContent-Length: 5\r\n\r\n\x00bin\xff"
		wanted := strings.TrimPrefix(target, "//double")
		if wanted != target {
			wanted = "http://example:99" + target
		}
		gatewaytest.WantIn(t, g.raw(t, sent), "HTTP/1.1 418 ", "X-Told: POST|"+wanted+"|example:99||||\r\n",
			"Inference-Header-Content-Length: 3", "\r\n\r\n\x00bin\xff")
	}
}

func TestWhatTheDoorHasToJudgeIsHandedOver(t *testing.T) {
	g := startBoth(t, told, limited(10_000))
	broken := gatewaytest.Packed(t, "gzip", gatewaytest.Pair)[:10]
	grows := `{"tensors":[{"float64_data":[0` + strings.Repeat(",0", 3000) + `]}]}`
	for _, test := range []struct {
		reason, path, body, header, value, want string
	}{
		{"json", "/svc/p?q", "{", "", "", "POST|/svc/p?q|%s|||"},
		{"json", "/svc/a%3Ab", `{"key":[null]}`, "Content-Encoding", "identity", "POST|/svc/a%%3Ab|%s|identity||"},
		{"json", "/svc/p", gatewaytest.Packed(t, "gzip", "{"), "Content-Encoding", "gzip", "POST|/svc/p|%s|gzip||"},
		{"encoding", "/svc/p", broken, "Content-Encoding", "gzip", "POST|/svc/p|%s|gzip||"},
		{"encoding", "/svc/p", "", "Content-Encoding", "br", "POST|/svc/p|%s|br||"},
		{"timeout", "/svc/p", gatewaytest.Pair, "Grpc-Timeout", "never", "POST|/svc/p|%s||never|"},
		{"size", "/svc/p", grows, "", "", "POST|/svc/p|%s|||"},
		{"metadata", "/svc/p", gatewaytest.Pair, "Authorization", strings.Repeat("b", edge.MaxMetadataBytes), "POST|/svc/p|%s|||"},
		{"metadata", "/svc/p", gatewaytest.Pair, "Grpc-Metadata-A", strings.Repeat("b", 20_000), "POST|/svc/p|%s|||"},
	} {
		header := []string{test.header, test.value}
		if test.header == "" {
			header = nil
		}
		got := g.ask(t, "POST", test.path, test.body, header...)
		if got.status != http.StatusTeapot || got.body != test.body {
			t.Errorf("%s: %d %.100q", test.reason, got.status, got.body)
		}
		gatewaytest.WantIn(t, got.header.Get("X-Told"), fmt.Sprintf(test.want, g.address))
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, `handed_over_total{reason="json"} 3`, `handed_over_total{reason="encoding"} 2`,
		`handed_over_total{reason="timeout"} 1`, `handed_over_total{reason="size"} 1`, `handed_over_total{reason="metadata"} 2`)
}

func TestABackendThatAnswersEarlyIsNoReasonToHangUp(t *testing.T) {
	early := func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusBadRequest)
		_ = control.Flush()
		_, _ = io.Copy(io.Discard, r.Body)
	}
	g := startBoth(t, early, nil)
	for _, target := range []string{"POST /v2", "PROPFIND /svc/p", "PUT /svc/p/x"} {
		conn, err := net.Dial("tcp", g.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
		_, _ = io.WriteString(conn, target+" HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n")
		time.Sleep(5 * edge.UnwantedWait)
		_, _ = io.WriteString(conn, "xyzGET /health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		got, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 400 ") || !strings.Contains(string(got), `{"status":"ok"}`) {
			t.Errorf("%s: %q, %v", target, got, err)
		}
	}
}

// noted is a connection that tells the first thing that is written to it.
type noted struct {
	net.Conn
	first chan string
}

func (c noted) Write(data []byte) (int, error) {
	select {
	case c.first <- string(data):
	default:
	}
	return c.Conn.Write(data)
}

func TestASmallBodyIsSentInOnePieceWithItsHead(t *testing.T) {
	first := make(chan string, 1)
	g := startBoth(t, told, nil)
	web := g.Pool.Backends()[0].Web
	dial := web.DialContext
	web.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return noted{conn, first}, err
	}
	g.ask(t, "POST", "/v2", "the body")
	if got := <-first; !strings.HasSuffix(got, "\r\n\r\nthe body") {
		t.Errorf("%q", got)
	}
}

func TestASmallBodyThatDoesNotComeIsRefusedBeforeItIsPassedOn(t *testing.T) {
	g := startBoth(t, told, func(cfg *config.Config) { cfg.Patience = 30 * time.Millisecond })
	got := g.raw(t, "POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{")
	gatewaytest.WantIn(t, got, "HTTP/1.1 408 Request Timeout\r\n", "Connection: close\r\n", "did not arrive within 0.03 s")
}

// silent answers when its caller has left.
func silent(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func TestAnHTTPPortThatDoesNotAnswerInTimeIsATimeout(t *testing.T) {
	g := startBoth(t, silent, nil, "--slack", "5ms")
	for _, test := range []struct{ method, path, body string }{
		{"POST", "/svc/p", "{"}, {"GET", "/v2", ""}, {"POST", "/v2/models/x/infer", "{}"}, {"GET", "/trace.json", ""},
		{"POST", "/v2", strings.Repeat("x", 100_000)},
	} {
		got := g.ask(t, test.method, test.path, test.body, "Grpc-Timeout", "5m")
		got.isRefusal(t, 504, 6000, "the request's deadline passed before backend 127.0.0.1:")
	}
	standard := startBoth(t, silent, nil, "--slack", "5ms", "--timeout", "5ms")
	standard.post(t, "{").isRefusal(t, 504, 6000, "the request's deadline passed")
	standard.post(t, "{}", "Grpc-Timeout", "x").isRefusal(t, 504, 6000, "the request's deadline passed")
	standard.ask(t, "POST", "/v2", "{}").isRefusal(t, 504, 6000, "the request's deadline passed")
}

func TestTheDeadlineIsForTheFirstWordOfAnAnswer(t *testing.T) {
	slack := 20 * time.Millisecond
	slow := func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		time.Sleep(5 * slack)
		_, _ = io.WriteString(w, "the end")
	}
	g := startBoth(t, slow, nil, "--slack", slack.String())
	if got := g.ask(t, "GET", "/v2", "", "Grpc-Timeout", "1m"); got.body != "the end" {
		t.Errorf("%q", got.body)
	}
}

func TestTheStandardDeadlineIsNotForWhatIsWatched(t *testing.T) {
	patient := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(50 * time.Millisecond)
		_, _ = io.WriteString(w, "recorded")
	}
	g := startBoth(t, patient, nil, "--slack", "5ms", "--timeout", "5ms")
	if got := g.ask(t, "GET", "/trace.json", ""); got.body != "recorded" {
		t.Errorf("%d %q", got.status, got.body)
	}
}

func TestTheDeadlineBeginsWhenTheBodyHasCome(t *testing.T) {
	g := startBoth(t, told, nil, "--slack", "300ms")
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /v2 HTTP/1.1\r\nHost: h\r\nGrpc-Timeout: 0m\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
	time.Sleep(400 * time.Millisecond)
	_, _ = io.WriteString(conn, "0\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusTeapot {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestABodyThatWasAskedForIsNotAskedForAgain(t *testing.T) {
	g := startBoth(t, told, nil)
	got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 1\r\n\r\n{")
	gatewaytest.WantIn(t, got, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 418 ")
}

func TestABackendMayAnswerBeforeItIsSentTheBody(t *testing.T) {
	refuses := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) }
	g := startBoth(t, refuses, nil)
	for _, header := range []string{"", "Expect: 100-continue\r\n"} {
		got := g.raw(t, "POST /v2/x HTTP/1.1\r\nHost: h\r\n"+header+"Content-Length: 1000000\r\n\r\n")
		gatewaytest.WantIn(t, got, "HTTP/1.1 413 ", "Connection: close\r\n")
	}
}

func TestAConnectionThatADoorWillNotHearAnyMoreIsClosed(t *testing.T) {
	refuses := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusBadRequest)
		}
	}
	g := startBoth(t, refuses, nil)
	if got := g.raw(t, "POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"); !strings.Contains(got, "Connection: close") {
		t.Errorf("%q", got)
	}
	got := g.raw(t, "GET /v2 HTTP/1.1\r\nHost: h\r\n\r\nGET /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if strings.Count(got, "HTTP/1.1 200 OK") != 2 {
		t.Errorf("the gateway closes its caller's connection because a backend stops: %q", got)
	}
}

func TestStreamsPassInBothDirections(t *testing.T) {
	g := startBoth(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			_, _ = fmt.Fprintf(w, "<%s>\n", lines.Text())
			_ = control.Flush()
		}
	}, nil)
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(answer.Body)
	if line, _ := answers.ReadString('\n'); line != "<one>\n" {
		t.Errorf("%q", line)
	}
}

func TestWithoutAnHTTPPortOtherPathsAreNotFound(t *testing.T) {
	g, _ := startEcho(t, nil)
	for _, path := range []string{"/", "/v2/models/x", "/svc", "//p", "/svc/p/x"} {
		g.ask(t, "GET", path, "").isRefusal(t, 404, 3002, "no such path: "+path+"; POST /<name>/<method>")
	}
}

func TestWithoutABackendOtherPathsSaySo(t *testing.T) {
	nobody := freeAddress(t)
	g := start(t, nil, "--backend", nobody+"/1")
	g.ask(t, "GET", "/v2", "").isRefusal(t, 503, 3001, "no backend is up: "+nobody)
	g.ask(t, "POST", "/v2", "body").isRefusal(t, 503, 3001, "no backend is up: "+nobody)
	if got := g.ask(t, "POST", "/v1/completions", "body"); got.status != 503 || !strings.Contains(got.body, `"type":"server_error"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	g.post(t, "{").isRefusal(t, 400, 8000, "does not fit")
}

func TestAnHTTPPortThatIsNotThereIsPassedOver(t *testing.T) {
	there := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	_, dead, _ := net.SplitHostPort(freeAddress(t))
	other := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, nil, "--backend", there.Address+"/"+gatewaytest.StartWeb(t, http.HandlerFunc(told)), "--backend", other.Address+"/"+dead)
	g.waitUntilServing(t, 2)
	for range 4 {
		if got := g.ask(t, "POST", "/v2", "body"); got.status != http.StatusTeapot || got.body != "body" {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	alone := startReady(t, "--backend", other.Address+"/"+dead)
	alone.ask(t, "POST", "/v2", "body").isRefusal(t, 503, 3001, "no backend could be reached")
}

func TestAnHTTPPortThatHangsUpIsSaid(t *testing.T) {
	g := startBoth(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil)
	g.ask(t, "GET", "/v2", "").isRefusal(t, 503, 3001, "the HTTP port of backend 127.0.0.1:")
}

func TestABodyThatBreaksOffOnItsWayThroughIsRefused(t *testing.T) {
	g := startBoth(t, told, nil)
	got := g.raw(t, "POST /v2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nz\r\n")
	gatewaytest.WantIn(t, got, "HTTP/1.1 400 ", "Connection: close", "this is not a valid HTTP/1.1 request")
}

func TestUnixSocketsServeBothPorts(t *testing.T) {
	path := gatewaytest.StartUnixWeb(t, http.HandlerFunc(told))
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{IsUnix: true})
	g := startReady(t, "--backend", backend.Address+","+path)
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/v2", "").header.Get("X-Told"), "GET|/v2|"+g.address)
}

func TestABackendsMetricsFollowOurs(t *testing.T) {
	g := startBoth(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, "nv_inference_count 3\n")
	}, nil, "--backend-metrics")
	got := g.ask(t, "GET", "/metrics", "")
	gatewaytest.WantIn(t, got.body, "pipeline_gateway_backend_up", "\nnv_inference_count 3\n")
	away := start(t, nil, "--backend-metrics", "--backend", freeAddress(t)+"/1")
	if got := away.ask(t, "GET", "/metrics", ""); got.status != 200 || !strings.Contains(got.body, "pipeline_gateway_backend_up") {
		t.Errorf("%d", got.status)
	}
}

func TestACallersOwnWordOnWhereItComesFromIsNotBelieved(t *testing.T) {
	seen := make(chan http.Header, 1)
	echoed := func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }
	own := []string{
		"X-Forwarded-For", "10.9.9.9", "Forwarded", "for=10.9.9.9", "X-Real-Ip", "10.9.9.9",
		"X-Forwarded-Host", "elsewhere", "X-Forwarded-Proto", "https", "X-Forwarded-Port", "443",
	}
	for _, test := range []struct {
		args []string
		want map[string]string
	}{
		{nil, map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http"}},
		{[]string{"--trusted-proxy", "10.0.0.0/8"}, map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http"}},
		{[]string{"--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "127.0.0.1"}, map[string]string{
			"X-Forwarded-For": "10.9.9.9, 127.0.0.1", "Forwarded": "for=10.9.9.9", "X-Real-Ip": "10.9.9.9",
			"X-Forwarded-Host": "elsewhere", "X-Forwarded-Proto": "https", "X-Forwarded-Port": "443",
		}},
	} {
		g := startBoth(t, echoed, nil, test.args...)
		g.ask(t, "GET", "/v2", "", own...)
		got := gatewaytest.Soon(t, "a request", seen)
		for at := 0; at < len(own); at += 2 {
			want := test.want[own[at]]
			if own[at] == "X-Forwarded-Host" && want == "" {
				want = g.address
			}
			if said := got.Get(own[at]); said != want {
				t.Errorf("%v: %s is %q, not %q", test.args, own[at], said, want)
			}
		}
	}
}
