package upstream

import (
	"fmt"
	"slices"
	"time"

	"pipeline/gateway/internal/balance"
)

// isBusyTrying says whether a backend is tried again after an ejection, and has a request already.
func (b *Backend) isBusyTrying() bool { return b.isOnTrial.Load() && b.Pending() > 0 }

// note takes down what a request says of a backend.
func (p *Pool) note(b *Backend, outcome Outcome) {
	switch outcome {
	case Good:
		if b.failures.Load() != 0 {
			b.failures.Store(0)
		}
		if b.isOnTrial.Load() && b.isOnTrial.CompareAndSwap(true, false) {
			p.log.Info("backend " + b.Name + " is asked as before: it has answered")
		}
	case Bad:
		inRow := b.failures.Add(1)
		if p.ejection.Failures > 0 && (int(inRow) >= p.ejection.Failures || b.isOnTrial.Load()) {
			p.eject(b)
		}
	}
}

// eject gives a backend no requests for some time, unless too many others get none.
func (p *Pool) eject(b *Backend) {
	p.lock.Lock()
	defer p.lock.Unlock()
	ejected := 0
	for _, each := range p.members {
		if each.isEjected {
			ejected++
		}
	}
	if b.isEjected || !slices.Contains(p.members, b) || !balance.MayEject(ejected, len(p.members)) {
		return
	}
	wait := b.ejections.Next(p.ejection, time.Now())
	failures := b.failures.Swap(0)
	b.isEjected = true
	b.isOnTrial.Store(false)
	b.ejectionCount++
	b.readmission = time.AfterFunc(wait, func() { p.readmit(b) })
	p.rechoose()
	p.log.Warn(fmt.Sprintf("backend %s is ejected for %v: %d requests in a row failed", b.Name, wait, failures))
}

// readmit tries a backend again: with one request at a time until one is answered, or fails.
func (p *Pool) readmit(b *Backend) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.isClosed || !b.isEjected {
		return
	}
	p.tryAgain(b)
	p.rechoose()
}

// tryAgain ends an ejection; the lock is held.
func (p *Pool) tryAgain(b *Backend) {
	b.readmission.Stop()
	b.isEjected = false
	b.isOnTrial.Store(true)
	p.log.Info("backend " + b.Name + " is tried again after its ejection")
}
