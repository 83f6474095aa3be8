package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/upstream"
)

const (
	stormCallers = 12
	stormTurns   = 16
)

// storm is callers of all kinds, and the statuses that they have seen.
type storm struct {
	*running
	bodies []string
	lock   sync.Mutex
	seen   map[int]bool
}

func (s *storm) call(number int) {
	switch number % 8 {
	case 0: // leaves in the middle of its body
		s.leave("POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(" ", 300_000))
	case 1: // leaves before its answer
		s.leave("POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
	case 2:
		s.ask(number, 3*time.Millisecond)
	default:
		s.ask(number, gatewaytest.Patience)
	}
}

func (s *storm) leave(sent string) {
	if conn, err := net.Dial("tcp", s.address); err == nil {
		_, _ = io.WriteString(conn, sent)
		_ = conn.Close()
	}
}

func (s *storm) ask(number int, most time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	body := s.bodies[number%len(s.bodies)]
	request, err := http.NewRequestWithContext(ctx, "POST", s.url+"/svc/p", strings.NewReader(body))
	if err != nil {
		return
	}
	request.Header.Set("Grpc-Timeout", "200m")
	if strings.HasPrefix(body, "\x1f") {
		request.Header.Set("Content-Encoding", "gzip")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	s.lock.Lock()
	s.seen[answer.StatusCode] = true
	s.lock.Unlock()
}

func TestNothingIsLeftAfterAStorm(t *testing.T) {
	t.Run("storm", func(t *testing.T) {
		server := gatewaytest.StartLinkServer(t, "")
		go server.ServeBadly()
		g := start(t, func(cfg *config.Config) { cfg.MaxBufferedBytes = gatewaytest.StormBudget }, "--slack", "0s", "--max-json-bytes", "2000000",
			"--backend", config.LinkScheme+server.Path, "--backend", servingLink(t, gatewaytest.Echo))
		g.waitUntilServing(t, 2)
		large := `{"key":["k"],"value":["` + strings.Repeat("x", 1<<20) + `"]}`
		s := &storm{running: g, seen: map[int]bool{}, bodies: []string{
			gatewaytest.Pair, large, gatewaytest.Packed(t, "gzip", gatewaytest.Pair), gatewaytest.Packed(t, "gzip", large), "{", large + large, gatewaytest.Packed(t, "gzip", gatewaytest.Pair)[:9],
		}}
		var callers sync.WaitGroup
		for first := range stormCallers {
			callers.Go(func() {
				for turn := range stormTurns {
					s.call(first*stormTurns + turn)
				}
			})
		}
		callers.Wait()
		for _, status := range []int{200, 400, 413} {
			if !s.seen[status] {
				t.Errorf("no %d among %v", status, s.seen)
			}
		}
		gatewaytest.WaitUntil(t, "no request is left", func() bool {
			return strings.Contains(g.ask(t, "GET", "/metrics", "").body, "requests_in_flight 1\n")
		})
		if held := g.Budget.Held.Load(); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
		for _, each := range g.Pool.Backends() {
			if linked, isLink := each.Upstream.(*upstream.Link); isLink {
				gatewaytest.WaitUntil(t, "nothing is queued", func() bool {
					calls, messages := linked.Held()
					return calls == 0 && messages == 0
				})
			}
		}
	})
	gatewaytest.WaitUntil(t, "no goroutine is left", func() bool { return onAnyStack("/internal/link.(", "/internal/edge.(*exchange)") == "" })
}

// onAnyStack returns the first of some names that stands on any goroutine's stack; "": none.
func onAnyStack(names ...string) string {
	stacks := make([]byte, 1<<20)
	text := string(stacks[:runtime.Stack(stacks, true)])
	for _, each := range names {
		if strings.Contains(text, each) {
			return each
		}
	}
	return ""
}
