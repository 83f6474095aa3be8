package upstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/metrics"
)

// lookAtRetired is how often a backend that is out of the list is asked for its remaining work. It is also
// the time for callers that chose it a moment before.
const lookAtRetired = 100 * time.Millisecond

// Set makes the backends those of a list. New ones are connected to, and get requests once they serve. Those
// that are
// in the list no more get none from now on, and are let go when their last request is over, or after the
// grace.
func (p *Pool) Set(addresses []config.Backend) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.isClosed {
		return
	}
	wanted := map[string]bool{}
	for _, address := range addresses {
		wanted[address.Name] = true
	}
	kept := p.members[:0:0]
	for _, each := range p.members {
		if wanted[each.Name] {
			kept = append(kept, each)
			delete(wanted, each.Name)
		} else {
			p.retire(each)
		}
	}
	for _, address := range addresses {
		if !wanted[address.Name] {
			continue
		}
		delete(wanted, address.Name)
		if added := p.add(address); added != nil {
			kept = append(kept, added)
		}
	}
	p.members = kept
	p.rechoose()
	if p.watching != nil {
		p.tellKnown()
	}
}

// add prepares a backend, and watches it if the pool has started; the lock is held.
func (p *Pool) add(address config.Backend) *Backend {
	added, err := newBackend(address, p.security, p.connect)
	if err != nil {
		p.log.Error(err.Error())
		return nil
	}
	if p.watching != nil {
		p.log.Info("backend " + added.Name + " is new in the list")
		p.watch(added)
	}
	return added
}

// watch keeps the connection to a backend; the lock is held.
func (p *Pool) watch(each *Backend) {
	ctx, cancel := context.WithCancel(p.watching)
	each.stopWatching = cancel
	p.Watchers.Go(func() {
		each.Watch(ctx, func(now Health) { p.Update(each, now) })
	})
}

// retire lets a backend go that is out of the list; the lock is held.
func (p *Pool) retire(gone *Backend) {
	if p.watching == nil {
		gone.hangUp()
		return
	}
	p.retired = append(p.retired, gone)
	p.log.Info(fmt.Sprintf("backend %s is out of the list: it gets no new requests, and has %d", gone.Name, gone.Pending()))
	p.Watchers.Go(func() {
		defer p.forget(gone)
		end := time.Now().Add(p.grace)
		for clock.Sleep(p.watching, min(lookAtRetired, p.grace)) {
			left := gone.Pending()
			if left == 0 && p.sequencesOf(gone) == 0 {
				p.log.Info("backend " + gone.Name + " is let go")
				return
			}
			if !time.Now().Before(end) {
				p.log.Warn(fmt.Sprintf("backend %s is let go after %v: %d requests and %d sequences are broken off", gone.Name, p.grace, left, p.sequencesOf(gone)))
				return
			}
		}
	})
}

// sequencesOf returns how many sequences a backend has.
func (p *Pool) sequencesOf(each *Backend) int {
	if p.sequences == nil {
		return 0
	}
	return p.sequences.Count(each, time.Now())
}

// forget ends the connections to a backend.
func (p *Pool) forget(gone *Backend) {
	gone.hangUp()
	p.lock.Lock()
	defer p.lock.Unlock()
	p.retired = slices.DeleteFunc(p.retired, func(each *Backend) bool { return each == gone })
}

// Backends returns the backends in the list.
func (p *Pool) Backends() []*Backend {
	p.lock.Lock()
	defer p.lock.Unlock()
	return slices.Clone(p.members)
}

// Figures returns the metrics of each backend, also of retired ones, unless they are back in the list.
func (p *Pool) Figures() []metrics.Backend {
	p.lock.Lock()
	defer p.lock.Unlock()
	figures := make([]metrics.Backend, 0, len(p.members)+len(p.retired))
	seen := map[string]bool{}
	for _, each := range slices.Concat(p.members, p.retired) {
		if seen[each.Name] {
			continue
		}
		seen[each.Name] = true
		isListed := len(figures) < len(p.members)
		figures = append(figures, metrics.Backend{
			Name: each.Name, IsUp: isListed && each.health.State == StateServing, Pending: each.Pending(),
			IsEjected: each.isEjected, Ejections: each.ejectionCount, Retries: each.retries.Load(),
		})
	}
	slices.SortFunc(figures, func(one, other metrics.Backend) int { return strings.Compare(one.Name, other.Name) })
	return figures
}
