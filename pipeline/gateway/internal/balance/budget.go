package balance

import (
	"sync"
	"sync/atomic"
	"time"
)

// savedSeconds are those of which a budget may be saved up.
const savedSeconds = 10

// Budget is how many requests may be sent a second time: a share of all, and some a second beside. When all backends
// fail, requests that are repeated without end would keep them down.
type Budget struct {
	share     float64
	perSecond float64
	requests  atomic.Int64 // since the budget was asked last

	lock  sync.Mutex
	saved float64
	asked time.Time
}

// NewBudget returns one that has saved what it can.
func NewBudget(share, perSecond float64, now time.Time) *Budget {
	return &Budget{share: share, perSecond: perSecond, saved: savedSeconds * perSecond, asked: now}
}

// Note counts a request that was not sent before.
func (b *Budget) Note() { b.requests.Add(1) }

// Take says whether a request may be sent once more, and counts it.
func (b *Budget) Take(now time.Time) bool {
	b.lock.Lock()
	defer b.lock.Unlock()
	passed := max(0, now.Sub(b.asked).Seconds())
	b.asked = now
	// Of more seconds than can be saved up, the requests of the last ones count, as if they had come evenly.
	share := b.share * float64(b.requests.Swap(0)) * min(1, savedSeconds/max(passed, 1))
	b.saved = min(b.saved+share+passed*b.perSecond, max(savedSeconds*b.perSecond, share))
	if b.saved < 1 {
		return false
	}
	b.saved--
	return true
}
