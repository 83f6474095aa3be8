package memory

import (
	"math"
	"testing"
)

func TestTheBudgetFitsTheMachine(t *testing.T) {
	for _, test := range []struct{ json, allowed, want int64 }{
		{16 << 20, math.MaxInt64, defaultBufferedBytes},
		{256 << 20, math.MaxInt64, 12 * 256 << 20},
		{16 << 20, 256 << 20, 128 << 20},
		{16 << 20, 1, LeastBufferedBytes},
	} {
		if got := BudgetFor(test.json, test.allowed); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
	if got := memoryFor(1<<20, math.MaxInt64); got != 2<<20+ownBytes {
		t.Errorf("%d", got)
	}
	if got := memoryFor(1<<30, 1000); got != 900 {
		t.Errorf("%d", got)
	}
	if limit := Limit(); limit <= 0 {
		t.Errorf("the control group allows %d bytes", limit)
	}
}

func TestMemoryThatNobodyHoldsIsGivenBack(t *testing.T) {
	for _, test := range []struct {
		taken, held int64
		want        bool
	}{{50 << 20, 0, false}, {65 << 20, 0, true}, {200 << 20, 100 << 20, false}, {300 << 20, 100 << 20, true}} {
		if got := isWorthSweeping(test.taken, test.held); got != test.want {
			t.Errorf("%+v", test)
		}
	}
}
