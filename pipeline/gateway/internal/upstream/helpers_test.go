package upstream

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/metrics"
)

// played is an upstream that answers as a test says.
type played struct {
	calls  int
	answer func(context.Context) error
	report func(Health)
}

func (p *played) Unary(ctx context.Context, _ *Call) (Reply, error) {
	p.calls++
	if p.answer == nil {
		return Reply{Data: []byte("well")}, nil
	}
	if err := p.answer(ctx); err != nil {
		return Reply{}, err
	}
	return Reply{Data: []byte("well")}, nil
}

func (p *played) Watch(ctx context.Context, report func(Health)) {
	p.report = report
	report(Health{State: StateServing})
	<-ctx.Done()
}

func (*played) Traits() Traits { return Traits{} }
func (*played) Close()         {}

// fails answers with an error, every time.
func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

var (
	errBroken  = &failure.Error{Status: http.StatusInternalServerError, ErrNo: failure.CodeUnknown, Text: "broken"}
	errLost    = failure.Unavailable("lost")
	errRefused = &failure.Error{Status: http.StatusServiceUnavailable, ErrNo: failure.CodeOverloaded, RetryAfter: 1, IsRefused: true}
)

// pooled runs a body on a virtual clock, with a pool of so many played backends that serve.
func pooled(t *testing.T, count int, body func(p *Pool, all []*played), options ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		args := options
		for number := range count {
			args = append(args, "--backend", string(rune('a'+number))+":1")
		}
		cfg, err := config.Parse(args)
		if err != nil {
			t.Fatal(err)
		}
		var all []*played
		connect := func(config.Backend, *config.BackendTLS) (Upstream, error) {
			all = append(all, &played{})
			return all[len(all)-1], nil
		}
		p, err := NewPool(cfg, connect, slog.New(slog.DiscardHandler), metrics.New())
		if err != nil {
			t.Fatal(err)
		}
		p.Start()
		synctest.Wait()
		body(p, all)
		p.Close()
	})
}

// asks sends so many requests, one after the other, and returns how many failed.
func asks(p *Pool, count int) (failed int) {
	for range count {
		if _, err := p.Unary(context.Background(), &Call{}); err != nil {
			failed++
		}
	}
	return failed
}

// counts returns how many calls each has had since it was asked last.
func counts(all []*played) (found []int) {
	for _, each := range all {
		found = append(found, each.calls)
		each.calls = 0
	}
	return found
}
