package balance

import (
	"testing"
	"time"
)

var (
	start  = time.Unix(1_000_000, 0)
	limits = EjectionLimits{Failures: 5, First: 10 * time.Second, Longest: time.Minute}
)

func TestEjectionsGrowUpToTheLongest(t *testing.T) {
	var own Ejections
	now := start
	for at, want := range []time.Duration{10, 20, 40, 60, 60} {
		if got := own.Next(limits, now); got != want*time.Second {
			t.Errorf("the %d. takes %v", at+1, got)
		}
		now = now.Add(want * time.Second)
	}
}

func TestAfterACalmTheNextEjectionIsAFirstOne(t *testing.T) {
	var own Ejections
	own.Next(limits, start)
	first := start.Add(limits.First)
	if got := own.Next(limits, first.Add(calmTimes*limits.Longest)); got != 2*limits.First {
		t.Errorf("at the end of the calm: %v", got)
	}
	second := first.Add(calmTimes*limits.Longest + 2*limits.First)
	if got := own.Next(limits, second.Add(calmTimes*limits.Longest+1)); got != limits.First {
		t.Errorf("after the calm: %v", got)
	}
}

func TestAtMostHalfOfTheBackendsAreEjected(t *testing.T) {
	for _, test := range []struct {
		ejected, all int
		want         bool
	}{{0, 0, false}, {0, 1, false}, {0, 2, true}, {1, 2, false}, {0, 3, true}, {1, 3, false}, {1, 4, true}, {2, 4, false}} {
		if got := MayEject(test.ejected, test.all); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// taken returns how often a budget can be taken from at one time.
func taken(b *Budget, now time.Time) (times int) {
	for b.Take(now) {
		times++
	}
	return times
}

func TestABudgetIsAShareOfTheRequestsAndSomeASecond(t *testing.T) {
	b := NewBudget(0.2, 3, start)
	if got := taken(b, start); got != savedSeconds*3 {
		t.Errorf("at the start: %d", got)
	}
	if got := taken(b, start.Add(time.Second)); got != 3 {
		t.Errorf("after a second: %d", got)
	}
	for range 100 {
		b.Note()
	}
	if got := taken(b, start.Add(time.Second)); got != 20 {
		t.Errorf("after 100 requests: %d", got)
	}
	if got := taken(b, start.Add(time.Hour)); got != savedSeconds*3 {
		t.Errorf("after an hour: %d", got)
	}
	for range 36000 {
		b.Note()
	}
	if got := taken(b, start.Add(2*time.Hour)); got != savedSeconds*3 {
		t.Errorf("after an hour of 10 requests a second: %d", got)
	}
	if got := taken(b, start); got != 0 {
		t.Errorf("of a clock that goes back: %d", got)
	}
}

func TestABudgetOfNothingIsEmpty(t *testing.T) {
	b := NewBudget(0, 0, start)
	b.Note()
	if b.Take(start.Add(time.Hour)) {
		t.Error("it is not")
	}
}

func TestSomeChecksInARowCount(t *testing.T) {
	var checks Checks
	for at, step := range []struct{ answered, want bool }{
		{true, false}, {false, false}, {true, false}, {false, false}, {false, false}, {false, true},
		{false, true}, {true, true}, {false, true}, {true, true}, {true, false}, {false, false},
	} {
		if got := checks.Note(step.answered, Thresholds{Unhealthy: 3, Healthy: 2}); got != step.want {
			t.Errorf("step %d: %v", at, got)
		}
	}
}
