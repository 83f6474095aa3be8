package memory

import (
	"sync"
	"testing"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/gatewaytest"
)

func TestABudgetIsNeverPassedAndAllOfItComesBack(t *testing.T) {
	b := NewBudget(1000)
	var callers sync.WaitGroup
	for number := range 8 {
		callers.Go(func() {
			for turn := range 500 {
				held := Share{Of: b}
				for size := range int64(20) {
					_ = held.Need(size * int64(turn%7))
					if now := b.Held.Load(); now > 1000+8*20*7 { // others may be about to give theirs back
						t.Errorf("%d bytes", now)
					}
				}
				held.Keep(int64(number))
				held.give(3)
				held.End()
				_ = held.Need(5)
				held.give(5)
			}
		})
	}
	callers.Wait()
	if now := b.Held.Load(); now != 0 {
		t.Errorf("%d bytes are left", now)
	}
}

func TestWhoFindsNoRoomIsToldWhetherToTryAgain(t *testing.T) {
	b := NewBudget(1000)
	first, second := Share{Of: b}, Share{Of: b}
	if err := first.Need(900); err != nil {
		t.Error(err)
	}
	gatewaytest.IsRefused(t, second.Need(101), 503, failure.CodeOverloaded, "try again")
	gatewaytest.IsRefused(t, second.Need(1001), 413, failure.CodePackage, "about 1001 bytes")
	first.End()
	if err := second.Need(1000); err != nil {
		t.Error(err)
	}
}
