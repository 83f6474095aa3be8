package upstream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhoHasLeastIsAsked(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		release := make(chan struct{})
		all[0].answer = func(context.Context) error {
			<-release
			return nil
		}
		done := make(chan int, 3)
		for range 3 { // one of them sticks
			go func() { done <- asks(p, 1) }()
			synctest.Wait()
		}
		wantCounts(t, "all have nothing", all, 1, 1, 1)
		asks(p, 8)
		if got := counts(all); got[0] != 0 || got[1]+got[2] != 8 {
			t.Errorf("one has something: %v calls", got)
		}
		close(release)
		for range 3 {
			<-done
		}
		asks(p, 9)
		wantCounts(t, "all have nothing again", all, 3, 3, 3)
	}, "--policy", "least-pending")
}

func TestWhatNeverLeftGoesToEachOther(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		all[0].answer, all[1].answer = fails(ErrNeverLeft), fails(ErrNeverLeft)
		if failed := asks(p, 1); failed != 0 {
			t.Error("it failed")
		}
		all[2].answer = fails(ErrNeverLeft)
		_, err := p.Unary(context.Background(), &Call{})
		if err == nil || errors.Is(err, ErrNeverLeft) {
			t.Errorf("%v", err)
		}
	}, "--retry-share", "0", "--retry-rate", "0")
}

func TestWhatWasRefusedGoesToOneOther(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		all[0].answer, all[1].answer = fails(errRefused), fails(errRefused)
		if failed := asks(p, 3); failed != 1 { // whose turn is the first's ends at the second
			t.Errorf("%d failed", failed)
		}
		wantCounts(t, "each", all, 1, 2, 2)
	})
}

func TestABudgetEndsRepetitions(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer, all[1].answer = fails(errRefused), fails(errRefused)
		asks(p, 1000)
		total := all[0].calls + all[1].calls
		if total < 1000+100 || total > 1000+100+200 { // what is saved, and a fifth
			t.Errorf("%d calls", total)
		}
		counts(all)
		time.Sleep(time.Second)
		asks(p, 100)
		if total := all[0].calls + all[1].calls; total != 100+10+20 {
			t.Errorf("%d calls of 100 a second later", total)
		}
	}, "--retry-rate", "10", "--retry-share", "0.2")
}

func TestWhatGotLostIsRepeatedIfItIsSafe(t *testing.T) {
	for _, isSafe := range []bool{false, true} {
		pooled(t, 2, func(p *Pool, all []*played) {
			all[1].answer = fails(errLost)
			_, err := p.Unary(context.Background(), &Call{IsSafe: isSafe})
			if (err == nil) != isSafe {
				t.Errorf("safe: %v, %v", isSafe, err)
			}
		})
	}
}

func TestWhatIsWrongEverywhereIsNotRepeated(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer, all[1].answer = fails(errBroken), fails(errBroken)
		_, err := p.Unary(context.Background(), &Call{IsSafe: true})
		if !errors.Is(err, errBroken) || all[0].calls+all[1].calls != 1 {
			t.Errorf("%v, %d calls", err, all[0].calls+all[1].calls)
		}
	})
}

// slow answers after wait, or when it is cancelled.
func slow(wait time.Duration, left chan<- error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(wait):
			return nil
		case <-ctx.Done():
			left <- ctx.Err()
			return ctx.Err()
		}
	}
}

func TestASafeRequestThatTakesLongGoesToAnotherToo(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		left := make(chan error, 1)
		all[1].answer = slow(time.Minute, left)
		begin := time.Now()
		call := &Call{IsSafe: true}
		if _, err := p.Unary(context.Background(), call); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 100*time.Millisecond || call.Asked != "a:1" {
			t.Errorf("%v by %s", took, call.Asked)
		}
		if len(left) != 1 {
			t.Error("the other attempt continues")
		}
		wantCounts(t, "each", all, 1, 1)
		if _, err := p.Unary(context.Background(), &Call{}); err != nil {
			t.Error(err)
		}
	}, "--hedge-after", "100ms")
}

func TestAHedgeThatFailsIsNoAnswer(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = fails(errBroken)
		all[1].answer = slow(time.Second, nil)
		begin := time.Now()
		if _, err := p.Unary(context.Background(), &Call{IsSafe: true}); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	}, "--hedge-after", "100ms")
}

func TestHedgesAreOffUnlessTheyAreAskedFor(t *testing.T) {
	for _, test := range []struct {
		options []string
		isSafe  bool
	}{{nil, true}, {[]string{"--hedge-after", "100ms"}, false}, {[]string{"--hedge-after", "100ms", "--retry-share", "0", "--retry-rate", "0"}, true}} {
		pooled(t, 2, func(p *Pool, all []*played) {
			all[1].answer = slow(time.Second, nil)
			if _, err := p.Unary(context.Background(), &Call{IsSafe: test.isSafe}); err != nil || all[0].calls != 0 {
				t.Errorf("%+v: %v, %d calls of another", test, err, all[0].calls)
			}
		}, test.options...)
	}
}

func TestACallerThatLeavesSaysNothingOfABackend(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		left := make(chan error, 100)
		all[0].answer, all[1].answer = slow(time.Minute, left), slow(time.Minute, left)
		for range 20 {
			ctx, leave := context.WithTimeout(context.Background(), time.Second)
			defer leave()
			caller, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Millisecond, cancel)
			_, _ = p.Unary(caller, &Call{})
		}
		if slices.ContainsFunc(p.Backends(), func(each *Backend) bool { return each.isEjected }) {
			t.Error("one is ejected")
		}
	})
}

func TestABackendThatLetsDeadlinesPassIsEjected(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = slow(time.Minute, make(chan error, 100))
		for range 20 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, _ = p.Unary(ctx, &Call{})
			cancel()
		}
		wantCounts(t, "one that says nothing", all, 5, 15)
	})
}
