package upstream

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func wantCounts(t *testing.T, what string, all []*played, want ...int) {
	t.Helper()
	if got := counts(all); !slices.Equal(got, want) {
		t.Errorf("%s: %v calls, not %v", what, got, want)
	}
}

func TestABackendThatFailsIsEjectedAndTriedAgain(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		all[0].answer = fails(errBroken)
		asks(p, 15)
		wantCounts(t, "until it has failed five times", all, 5, 5, 5)
		asks(p, 6)
		wantCounts(t, "then", all, 0, 3, 3)
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		asks(p, 6)
		if got := all[0].calls; got != 1 {
			t.Errorf("it was tried %d times", got)
		}
		counts(all)
		time.Sleep(19 * time.Second)
		if asks(p, 6); all[0].calls != 0 {
			t.Error("the second ejection takes no longer than the first")
		}
		all[0].answer = nil
		time.Sleep(time.Second + 1)
		synctest.Wait()
		counts(all)
		if failed := asks(p, 9); failed != 0 {
			t.Errorf("%d failed", failed)
		}
		wantCounts(t, "when it is well", all, 3, 3, 3)
	})
}

func TestABackendOnTrialHasOneRequestAtATime(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = fails(errBroken)
		asks(p, 10)
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		released := make(chan struct{})
		all[0].answer = func(context.Context) error {
			<-released
			return nil
		}
		counts(all)
		done := make(chan int, 8)
		for range 8 {
			go func() { done <- asks(p, 1) }()
			synctest.Wait()
		}
		wantCounts(t, "while it is tried", all, 1, 7)
		close(released)
		for range 8 {
			<-done
		}
		asks(p, 4)
		wantCounts(t, "behind that", all, 2, 2)
	})
}

func TestAtMostHalfAreEjectedAndWhatOthersHaveIsNotTheirFault(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		for _, each := range all {
			each.answer = fails(errBroken)
		}
		asks(p, 60)
		got := counts(all)
		if slices.Sort(got); !slices.Equal(got, []int{5, 27, 28}) {
			t.Errorf("one of three is ejected: %v calls", got)
		}
	})
}

func TestTheLastOneIsNotEjected(t *testing.T) {
	pooled(t, 1, func(p *Pool, all []*played) {
		all[0].answer = fails(errBroken)
		asks(p, 20)
		wantCounts(t, "alone", all, 20)
	})
}

func TestWhoFailsNowAndThenStays(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		turn := 0
		all[0].answer = func(context.Context) error {
			if turn++; turn%5 == 0 {
				return nil
			}
			return errBroken
		}
		asks(p, 40)
		wantCounts(t, "four failures in a row", all, 20, 20)
	})
}

func TestAnOverloadEjectsNobody(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = fails(errRefused)
		asks(p, 40)
		if all[0].calls != 20 {
			t.Errorf("%d calls", all[0].calls)
		}
	})
}

func TestEjectionsCanBeTurnedOff(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = fails(errBroken)
		asks(p, 40)
		wantCounts(t, "without ejections", all, 20, 20)
	}, "--eject-after", "0")
}

func TestAProcessThatWasStartedAnewIsTriedAtOnce(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = fails(errLost)
		asks(p, 10)
		all[0].answer = nil
		all[0].report(Health{StateDown, "gone"})
		all[0].report(Health{State: StateServing})
		counts(all)
		asks(p, 4)
		wantCounts(t, "the new one", all, 2, 2)
	})
}

func TestIfAllOthersAreGoneTheEjectedOneIsAsked(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		all[0].answer = fails(errBroken)
		asks(p, 10)
		all[0].answer = nil
		all[1].report(Health{StateDown, "gone"})
		counts(all)
		if failed := asks(p, 2); failed != 0 || !p.IsReady() {
			t.Errorf("%d failed", failed)
		}
		wantCounts(t, "nobody else", all, 2, 0)
	})
}
