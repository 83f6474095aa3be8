package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"pipeline/gateway/pipelinepb"
)

// large answers with so many bytes.
func large(size int) answerer {
	text := strings.Repeat("x", size)
	return func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) { return responseOf(text), nil }
}

// taking is a connection whose peer takes so many bytes of each write before that times out.
type taking struct {
	net.Conn
	takes []int
	got   int
}

func (c *taking) SetWriteDeadline(time.Time) error { return nil }

func (c *taking) Write(data []byte) (int, error) {
	if len(c.takes) == 0 {
		c.got += len(data)
		return len(data), nil
	}
	n := min(c.takes[0], len(data))
	c.takes = c.takes[1:]
	c.got += n
	return n, os.ErrDeadlineExceeded
}

func TestACallerThatTakesSomethingNowAndThenGetsAll(t *testing.T) {
	for _, test := range []struct {
		takes []int
		got   int
		err   error
	}{
		{nil, 100, nil},
		{[]int{1, 1, 50, 1}, 100, nil},
		{[]int{1, 0, 50, 0, 1}, 100, nil},
		{[]int{1, 0, 0}, 1, os.ErrDeadlineExceeded},
		{[]int{0, 0}, 0, os.ErrDeadlineExceeded},
	} {
		raw := &taking{takes: test.takes}
		conn := newGuardedConn(raw, newGuard(nil, &config{writeTimeout: time.Hour}, newStats()))
		n, err := conn.Write(make([]byte, 100))
		if n != test.got || raw.got != test.got || !errors.Is(err, test.err) {
			t.Errorf("%v: %d, %d, %v", test.takes, n, raw.got, err)
		}
	}
	raw := &taking{takes: []int{1}}
	conn := newGuardedConn(raw, newGuard(nil, &config{writeTimeout: time.Hour}, newStats()))
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if n, err := conn.Write(make([]byte, 100)); n != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("beyond a deadline: %d, %v", n, err)
	}
}

// startLarge runs a gateway whose callers get a large answer, and soon are given up.
func startLarge(t *testing.T, args ...string) *running {
	t.Helper()
	g := start(t, func(cfg *config) { cfg.writeTimeout = 30 * time.Millisecond },
		append(args, "--max-json-bytes", "100000000", "--backend", startDouble(t, large(32<<20), doubleOptions{}).address)...)
	g.waitUntilServing(t, 1)
	return g
}

func (r *running) waitUntilAlone(t *testing.T) {
	t.Helper()
	waitUntil(t, "nobody is left and nothing is held", func() bool {
		text := r.ask(t, "GET", "/metrics", "").body
		return r.budget.held.Load() == 0 && strings.Contains(text, "requests_in_flight 1\n") && strings.Contains(text, "_connections 1\n")
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
	waitUntil(t, "it has its answer", func() bool {
		return strings.Contains(g.ask(t, "GET", "/metrics", "").body, `requests_total{code="200",route="inference"} 1`)
	})
	g.waitUntilAlone(t)
}

func TestAnHTTP2StreamThatIsNotReadIsGivenUp(t *testing.T) {
	for _, answer := range []answerer{large(1 << 20), large(10)} {
		g := start(t, func(cfg *config) { cfg.writeTimeout = 30 * time.Millisecond },
			"--h2c", "--backend", startDouble(t, answer, doubleOptions{}).address)
		g.waitUntilServing(t, 1)
		caller := startH2(t, g.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		caller.ask(1, pair)
		caller.hear(func(frame http2.Frame) bool {
			_, isReset := frame.(*http2.RSTStreamFrame)
			return isReset
		})
		waitUntil(t, "nothing is held", func() bool { return g.budget.held.Load() == 0 })
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
	}, func(cfg *config) { cfg.writeTimeout = 10 * time.Millisecond }, "--h2c")
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
	g := start(t, nil, "--max-connections", "1", "--backend", backend.address)
	g.waitUntilServing(t, 1)
	idle, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	_ = idle.SetDeadline(time.Now().Add(testPatience))
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
	wantIn(t, got, "HTTP/1.1 503 Service Unavailable\r\n", "connection: close\r\n", "retry-after: 1\r\n", "--max-connections", `"err_no":3004`)
	close(backend.release)
	soon(t, "an answer", busy)
	waitUntil(t, "there is a place again", func() bool {
		return strings.HasPrefix(g.raw(t, "GET /health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), "HTTP/1.1 200 ")
	})
}

func TestAHandshakeHasLittleTime(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	g := start(t, func(cfg *config) { cfg.handshakeTimeout = 30 * time.Millisecond },
		"--tls-cert", cert, "--tls-key", key, "--backend", startDouble(t, echo, doubleOptions{}).address)
	if got := g.raw(t, ""); got != "" {
		t.Errorf("%q", got)
	}
	if got := g.raw(t, "\x16\x03\x01\x02\x00\x01\x00"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestASlowHeadIsGivenUp(t *testing.T) {
	g := start(t, func(cfg *config) { cfg.headPatience = 30 * time.Millisecond }, "--backend", startDouble(t, echo, doubleOptions{}).address)
	for _, sent := range []string{"", "POST /svc/p HT", "POST /svc/p HTTP/1.1\r\nHost: h\r\nA:"} {
		if got := g.raw(t, sent); got != "" && !strings.HasPrefix(got, "HTTP/1.1 400 ") { // it has ended
			t.Errorf("%q: %q", sent, got)
		}
	}
}
