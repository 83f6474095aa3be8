package access

import (
	"context"
	"sync"
	"time"

	"pipeline/gateway/internal/fair"
	"pipeline/gateway/internal/memory"
)

// Grant is a request that was admitted, until it is done. Without a gate it is nil and has no limits.
type Grant struct {
	Caller *Caller
	meter  *meter  // nil: the caller has no limits
	places *places // nil: it takes none
	key    who
	unpaid int // bytes of its body that the meter has counted before they came
}

// Done ends it.
func (g *Grant) Done() {
	if g == nil {
		return
	}
	if g.meter != nil {
		g.meter.done()
	}
	if g.places != nil {
		g.places.done(g.key)
	}
}

// Name returns the caller's; "": there is no gate.
func (g *Grant) Name() string {
	if g == nil {
		return ""
	}
	return g.Caller.Name
}

// Received counts bytes that have come, and returns for how long not to read on.
func (g *Grant) Received(count int) time.Duration {
	if g == nil || g.meter == nil {
		return 0
	}
	before := min(count, g.unpaid)
	g.unpaid -= before
	return g.meter.charge(time.Now(), count-before)
}

// Sent counts bytes of an answer, and returns for how long the next ones of a stream have to wait.
func (g *Grant) Sent(count int) time.Duration {
	if g == nil || g.meter == nil {
		return 0
	}
	return g.meter.charge(time.Now(), count)
}

// Budget bounds what the caller may have held of its requests and answers; nil: nothing does.
func (g *Grant) Budget() *memory.Budget {
	if g == nil || g.meter == nil {
		return nil
	}
	return g.meter.budget
}

// FairShare returns how many requests of all callers are at servers at once; more wait until it is their
// caller's turn.
type FairShare struct {
	InFlight int     `json:"in_flight"` // 0: any number
	Queue    int     `json:"queue"`     // that wait
	MaxWaitS float64 `json:"max_wait_s"`
}

// places are shared among callers, who wait for them.
type places struct {
	lock  sync.Mutex
	queue *fair.Queue[who]
	most  time.Duration
	start time.Time
	isSet bool // the timer that looks again
}

func newPlaces(said FairShare) *places {
	if said.InFlight == 0 {
		return nil
	}
	return &places{queue: fair.New[who](said.InFlight, said.Queue), most: time.Duration(said.MaxWaitS * float64(time.Second)), start: time.Now()}
}

// take waits for a place; false: there is none for this caller now.
func (p *places) take(ctx context.Context, key who) bool {
	told := make(chan fair.Outcome, 1)
	p.lock.Lock()
	ticket := p.queue.Ask(time.Since(p.start), key, func(outcome fair.Outcome) { told <- outcome })
	p.lookAgain()
	p.lock.Unlock()
	select {
	case outcome := <-told: // most of the time
		return outcome == fair.In
	default:
	}
	late := time.NewTimer(p.most)
	defer late.Stop()
	select {
	case outcome := <-told:
		return outcome == fair.In
	case <-late.C:
	case <-ctx.Done():
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.queue.GiveUp(ticket) && <-told == fair.In { // at the same moment
		p.queue.Done(time.Since(p.start), key)
	}
	return false
}

// lookAgain gives what is held for callers that do not come back to others, a little later.
func (p *places) lookAgain() {
	if p.isSet || !p.queue.Holds() {
		return
	}
	p.isSet = true
	time.AfterFunc(fair.Window/4, func() {
		p.lock.Lock()
		defer p.lock.Unlock()
		p.isSet = false
		p.queue.Fill(time.Since(p.start))
		p.lookAgain()
	})
}

func (p *places) done(key who) {
	p.lock.Lock()
	p.queue.Done(time.Since(p.start), key)
	p.lookAgain()
	p.lock.Unlock()
}
