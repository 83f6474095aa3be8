package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
)

// startLarge runs a gateway whose callers get a large answer, and soon are given up.
func startLarge(t *testing.T, args ...string) *running {
	t.Helper()
	g := start(t, func(cfg *config.Config) { cfg.WriteTimeout = 30 * time.Millisecond },
		append(args, "--max-json-bytes", "100000000", "--backend", gatewaytest.StartDouble(t, gatewaytest.Large(32<<20), gatewaytest.DoubleOptions{}).Address)...)
	g.waitUntilServing(t, 1)
	return g
}

func (r *running) waitUntilAlone(t *testing.T) {
	t.Helper()
	gatewaytest.WaitUntil(t, "nobody is left and nothing is held", func() bool {
		text := r.ask(t, "GET", "/metrics", "").body
		return r.Budget.Held.Load() == 0 && strings.Contains(text, "requests_in_flight 1\n") && strings.Contains(text, "_connections 1\n")
	})
}

func TestACallerThatDoesNotReadItsAnswerIsGivenUp(t *testing.T) {
	g := startLarge(t)
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	_, _ = io.WriteString(conn, "POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
	gatewaytest.WaitUntil(t, "it has its answer", func() bool {
		return strings.Contains(g.ask(t, "GET", "/metrics", "").body, `requests_total{code="200",route="inference"} 1`)
	})
	g.waitUntilAlone(t)
}

func TestAnHTTP2StreamThatIsNotReadIsGivenUp(t *testing.T) {
	for _, answer := range []gatewaytest.Answerer{gatewaytest.Large(1 << 20), gatewaytest.Large(10)} {
		g := start(t, func(cfg *config.Config) { cfg.WriteTimeout = 30 * time.Millisecond },
			"--h2c", "--backend", gatewaytest.StartDouble(t, answer, gatewaytest.DoubleOptions{}).Address)
		g.waitUntilServing(t, 1)
		caller := startH2(t, g.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		caller.ask(1, gatewaytest.Pair)
		caller.hear(func(frame http2.Frame) bool {
			_, isReset := frame.(*http2.RSTStreamFrame)
			return isReset
		})
		gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
		caller.ask(3, "", ":method", "HEAD", ":path", "/health/live")
		caller.hear(func(frame http2.Frame) bool {
			head, isHead := frame.(*http2.MetaHeadersFrame)
			return isHead && head.StreamID == 3
		})
	}
}

func TestAStreamOfSilenceIsNotGivenUp(t *testing.T) {
	release := make(chan struct{})
	g := startBoth(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, "two")
	}, func(cfg *config.Config) { cfg.WriteTimeout = 10 * time.Millisecond }, "--h2c")
	caller := startH2(t, g.address)
	caller.ask(1, "", ":method", "GET", ":path", "/v2")
	text := ""
	for text != "onetwo" {
		frame := caller.hear(func(frame http2.Frame) bool { return frame.Header().StreamID == 1 })
		switch frame := frame.(type) {
		case *http2.DataFrame:
			if text += string(frame.Data()); text == "one" {
				time.AfterFunc(50*time.Millisecond, func() { close(release) })
			}
		case *http2.RSTStreamFrame:
			t.Fatal(frame)
		}
	}
}

func TestWhoIsOneTooManyTakesAnIdlePlaceOrIsRefused(t *testing.T) {
	backend := startWaiting(t)
	g := start(t, nil, "--max-connections", "1", "--backend", backend.Address)
	g.waitUntilServing(t, 1)
	idle, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	_ = idle.SetDeadline(time.Now().Add(gatewaytest.Patience))
	_, _ = io.WriteString(idle, "GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n")
	source := bufio.NewReader(idle)
	answer, err := http.ReadResponse(source, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	busy := make(chan reply, 1)
	go func() { // when the server knows that the first one is idle
		for {
			if got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"); strings.HasPrefix(got, "HTTP/1.1 200 ") {
				busy <- reply{}
				return
			}
		}
	}()
	<-backend.entered
	if _, err := source.ReadByte(); err != io.EOF {
		t.Errorf("the idle one: %v", err)
	}
	got := g.raw(t, "GET /health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	gatewaytest.WantIn(t, got, "HTTP/1.1 503 Service Unavailable\r\n", "connection: close\r\n", "retry-after: 1\r\n", "--max-connections", `"err_no":3004`)
	close(backend.release)
	gatewaytest.Soon(t, "an answer", busy)
	gatewaytest.WaitUntil(t, "there is a place again", func() bool {
		return strings.HasPrefix(g.raw(t, "GET /health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), "HTTP/1.1 200 ")
	})
}

func TestConnectionsThatSayNothingGiveWay(t *testing.T) {
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, nil, "--max-connections", "4", "--backend", backend.Address)
	g.waitUntilServing(t, 1)
	for range 40 {
		silent, err := net.Dial("tcp", g.address)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	got := g.raw(t, "GET /health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	gatewaytest.WantIn(t, got, "HTTP/1.1 200 ")
}

func TestAHandshakeHasLittleTime(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	g := start(t, func(cfg *config.Config) { cfg.HandshakeTimeout = 30 * time.Millisecond },
		"--tls-cert", cert, "--tls-key", key, "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	if got := g.raw(t, ""); got != "" {
		t.Errorf("%q", got)
	}
	if got := g.raw(t, "\x16\x03\x01\x02\x00\x01\x00"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestASlowHeadIsGivenUp(t *testing.T) {
	g := start(t, func(cfg *config.Config) { cfg.HeadPatience = 30 * time.Millisecond }, "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	for _, sent := range []string{"", "POST /svc/p HT", "POST /svc/p HTTP/1.1\r\nHost: h\r\nA:"} {
		if got := g.raw(t, sent); got != "" && !strings.HasPrefix(got, "HTTP/1.1 400 ") { // it has ended
			t.Errorf("%q: %q", sent, got)
		}
	}
}
