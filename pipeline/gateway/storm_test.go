package main

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
)

const (
	stormCallers = 12
	stormTurns   = 16
	stormBudget  = 24 << 20
)

// serveBadly answers some requests of every connection, and others not, or not as it should.
func (s *linkServer) serveBadly() {
	for peer := range s.peers {
		peer.say(frameReady, 0, []byte{linkVersion, 1})
		go peer.serveBadly()
	}
}

func (p *linkPeer) serveBadly() {
	for turn := 0; ; {
		got, err := p.message()
		if err != nil {
			return
		}
		if got.kind != frameAsk {
			continue
		}
		turn++
		switch turn % 8 {
		case 0: // in the middle of an answer
			p.say(frameMoreBack, got.id, make([]byte, mostPieceBytes))
			_ = p.raw.Close()
			return
		case 1:
			p.fail(got.id, 500, int32(codeUnknown), "broken")
		case 2: // never
		case 3: // never all of it
			p.say(frameMoreBack, got.id, make([]byte, mostPieceBytes))
		case 4:
			p.answer(got.id, responseOf(strings.Repeat("x", stormBudget)))
		case 5:
			p.answer(got.id+1<<40, responseOf("nobody's"))
			p.answer(got.id, responseOf(strings.Repeat("x", 1<<20)))
			p.answer(got.id, responseOf("again"))
		case 6:
			p.say(frameAnswer, got.id, []byte("no protobuf"))
		default:
			p.answer(got.id, responseOf("x"))
		}
	}
}

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
		s.ask(number, testPatience)
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
		server := startLinkServer(t, "")
		go server.serveBadly()
		g := start(t, func(cfg *config) { cfg.maxBufferedBytes = stormBudget }, "--slack", "0s", "--max-json-bytes", "2000000",
			"--backend", linkScheme+server.path, "--backend", servingLink(t, echo))
		g.waitUntilServing(t, 2)
		large := `{"key":["k"],"value":["` + strings.Repeat("x", 1<<20) + `"]}`
		s := &storm{running: g, seen: map[int]bool{}, bodies: []string{
			pair, large, packed(t, "gzip", pair), packed(t, "gzip", large), "{", large + large, packed(t, "gzip", pair)[:9],
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
		waitUntil(t, "no request is left", func() bool {
			return strings.Contains(g.ask(t, "GET", "/metrics", "").body, "requests_in_flight 1\n")
		})
		if held := g.budget.held.Load(); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
		for _, each := range g.pool.backends {
			if conn := each.asker.(*link).current.Load(); conn != nil {
				waitUntil(t, "nothing is queued", conn.isIdle)
			}
		}
	})
	waitUntil(t, "no goroutine is left", func() bool { return onAnyStack("main.(*linkConn)", "main.(*exchange)", "main.(*link)") == "" })
}

func (c *linkConn) isIdle() bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.calls) == 0 && c.queue.isEmpty()
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

func TestWhatIsWrittenIsLetGo(t *testing.T) {
	conn, batch := newLinkConn(nil), newLinkBatch()
	_ = conn.send(callOfLink(t, strings.Repeat("a", 2*mostPieceBytes)))
	for conn.take(batch) {
		batch.sent()
	}
	for _, each := range append(batch.vector[:cap(batch.vector)], batch.done[:cap(batch.done)]...) {
		if each != nil {
			t.Errorf("%d bytes are kept", len(each))
		}
	}
}
