package upstream

import (
	"context"
	"slices"
	"sync"
	"time"
)

// trail is who was asked for a request. The first ones take no memory of their own.
type trail struct {
	lock  sync.Mutex
	few   [2]*Backend
	count int
	many  []*Backend // all of them, when they are no longer few
}

// add notes one more, and returns how many there are.
func (t *trail) add(one *Backend) int {
	t.lock.Lock()
	defer t.lock.Unlock()
	switch {
	case t.count < len(t.few):
		t.few[t.count] = one
	default:
		t.many = append(slices.Clip(t.known()), one)
	}
	t.count++
	return t.count
}

// all returns them, for reading.
func (t *trail) all() []*Backend {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.known()
}

// known is all; the lock is held.
func (t *trail) known() []*Backend {
	if t.count <= len(t.few) {
		return t.few[:t.count:t.count]
	}
	return slices.Clip(t.many)
}

// leg is one of the two ways in which a hedged request goes.
type leg[T any] struct {
	answer T
	err    error
	asked  string
}

// hedge asks, and also asks another backend if there is no answer for some time. The first answer counts;
// the other attempt
// is cancelled, and waited for: it reads the request.
func hedge[T any](ctx context.Context, p *Pool, want *Want, try func(context.Context, *Attempt) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	asked := &trail{}
	ended := make(chan leg[T], 2)
	var legs sync.WaitGroup
	defer legs.Wait()
	defer cancel()
	start := func() {
		legs.Go(func() {
			own := *want
			answer, err := inTurn(ctx, p, &own, asked, try)
			ended <- leg[T]{answer, err, own.Asked}
		})
	}
	start()
	running := 1
	timer := time.NewTimer(p.hedgeAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if p.hasOther(want.Work, asked) && p.takeRetry() {
				p.stats.Hedges.Inc()
				running++
				start()
			}
		case one := <-ended:
			if running--; one.err == nil || running == 0 {
				want.Asked = one.asked
				return one.answer, one.err
			}
		}
	}
}
