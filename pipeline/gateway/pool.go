package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// pool is all backends. Who is asked next is read without a lock; the lists change only with the
// health of a backend.
type pool struct {
	backends []*backend
	log      *logger
	stats    *stats

	lock         sync.Mutex
	serving      chan struct{} // closed as soon as the first backend serves
	hasServed    bool
	known        chan struct{} // closed as soon as something is known of every backend
	unknown      int
	candidates   atomic.Pointer[candidates]
	turns        turns
	stopWatching context.CancelFunc
	watchers     sync.WaitGroup
}

// turns says whose turn it is, for each kind of work in a list of its own: with one turn for all, two
// kinds that alternate would each have one backend do everything.
type turns struct{ rpc, web, metrics atomic.Uint64 }

// candidates are the backends to ask: those that serve or, if none does, those that are connected,
// whose own answer then counts.
type candidates struct {
	rpc     []*backend
	web     []*backend // those of them whose HTTP port is known
	isReady bool

	wantHeaders bool // a link among them
}

// newPool prepares all backends; `start` connects to them.
func newPool(cfg config, log *logger, stats *stats) (*pool, error) {
	security, err := loadBackendTLS(cfg.backendTLS)
	if err != nil {
		return nil, err
	}
	p := &pool{log: log, stats: stats, serving: make(chan struct{}), known: make(chan struct{})}
	for _, address := range cfg.backends {
		each, err := newBackend(address, security, cfg.stallTimeout)
		if err != nil {
			p.close()
			return nil, err
		}
		p.backends = append(p.backends, each)
		stats.backendUp.WithLabelValues(each.name).Set(0)
	}
	p.unknown = len(p.backends)
	p.candidates.Store(&candidates{})
	return p, nil
}

// start watches every backend until `close`.
func (p *pool) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.stopWatching = cancel
	for _, each := range p.backends {
		p.watchers.Go(func() {
			each.watch(ctx, func(now health) { p.update(each, now) })
		})
	}
}

// close ends the watchers and all connections.
func (p *pool) close() {
	if p.stopWatching != nil {
		p.stopWatching()
	}
	for _, each := range p.backends {
		each.hangUp()
	}
	p.watchers.Wait()
}

// update takes note of a backend's health.
func (p *pool) update(changed *backend, now health) {
	p.lock.Lock()
	defer p.lock.Unlock()
	before := changed.health
	changed.health = now
	p.candidates.Store(p.choose())
	if now.state == stateServing && !p.hasServed {
		p.hasServed = true
		close(p.serving)
	}
	if before.reason == notConnectedYet && now.reason != notConnectedYet {
		if p.unknown--; p.unknown == 0 {
			close(p.known)
		}
	}
	if before.state == now.state && before.reason != notConnectedYet {
		return
	}
	if now.state == stateServing {
		p.stats.backendUp.WithLabelValues(changed.name).Set(1)
		p.log.infof("backend %s serves", changed.name)
		return
	}
	p.stats.backendUp.WithLabelValues(changed.name).Set(0)
	p.log.warningf("backend %s gets no requests: %s", changed.name, now.reason)
}

// choose returns the backends to ask; the lock is held.
func (p *pool) choose() *candidates {
	var chosen candidates
	for _, wanted := range []state{stateServing, stateConnected} {
		for _, each := range p.backends {
			if each.health.state != wanted {
				continue
			}
			chosen.rpc = append(chosen.rpc, each)
			if linked, isLink := each.asker.(*link); isLink && linked.wantsHeaders() {
				chosen.wantHeaders = true
			}
			if each.web != nil {
				chosen.web = append(chosen.web, each)
			}
		}
		if len(chosen.rpc) > 0 {
			chosen.isReady = wanted == stateServing
			break
		}
	}
	return &chosen
}

// awaitKnown waits until something is known of every backend. Callers who come before, such as those
// who queue at the socket of a gateway that is started anew, would be told that there is none.
func (p *pool) awaitKnown(limit time.Duration) {
	select {
	case <-p.known:
	case <-time.After(limit):
	}
}

// isReady says whether any backend serves.
func (p *pool) isReady() bool { return p.candidates.Load().isReady }

// pick returns whose turn it is in a list, without those that were asked; nil: nobody's. A second
// attempt takes no turn of its own, so that all keep their share.
func pick(list []*backend, next *atomic.Uint64, asked []*backend) *backend {
	turn := next.Load()
	if len(asked) == 0 {
		turn = next.Add(1)
	}
	for offset := range uint64(len(list)) {
		each := list[(turn+offset)%uint64(len(list))]
		if !slices.Contains(asked, each) {
			return each
		}
	}
	return nil
}

// nobody answers a request that no backend can be asked for.
func (p *pool) nobody() *refusal {
	p.lock.Lock()
	defer p.lock.Unlock()
	reasons := make([]string, 0, len(p.backends))
	for _, each := range p.backends {
		if each.health.state != stateServing {
			reasons = append(reasons, each.name+": "+each.health.reason)
		}
	}
	if len(reasons) == 0 {
		return unavailable("no backend could be reached; try again")
	}
	return unavailable("no backend is up: " + strings.Join(reasons, "; "))
}
