package upstream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/metrics"
)

// Pool is all backends. Who is asked next is read without a lock; the lists change only with the
// health of a backend.
type Pool struct {
	Backends []*Backend
	log      *slog.Logger
	stats    *metrics.Stats

	lock         sync.Mutex
	Serving      chan struct{} // closed as soon as the first backend serves
	hasServed    bool
	Known        chan struct{} // closed as soon as something is known of every backend
	Reached      chan struct{} // closed as soon as the first backend is connected
	wasReached   bool
	unknown      int
	Candidates   atomic.Pointer[candidates]
	Turns        turns
	StopWatching context.CancelFunc
	OnChange     func(isReady bool) // set before Start; told what IsReady says now, whenever a backend changes
	Watchers     sync.WaitGroup
}

// turns says whose turn it is, for each kind of work in a list of its own: with one turn for all, two
// kinds that alternate would each have one backend do everything.
type turns struct{ rpc, Web, Metrics atomic.Uint64 }

// candidates are the backends to ask: those that serve or, if none does, those that are connected,
// whose own answer then counts.
type candidates struct {
	RPC     []*Backend
	Web     []*Backend     // those of them whose HTTP port is known
	Links   []*link.Client // those of them that are reached by one
	IsReady bool

	WantHeaders bool // one of them is told all headers
	AllLocal    bool // see Traits
	AllTakeJSON bool
}

// NewPool prepares all backends; `start` connects to them.
func NewPool(cfg config.Config, connect Connect, log *slog.Logger, stats *metrics.Stats) (*Pool, error) {
	security, err := config.LoadBackendTLS(cfg.BackendTLS)
	if err != nil {
		return nil, err
	}
	p := &Pool{log: log, stats: stats, Serving: make(chan struct{}), Known: make(chan struct{}), Reached: make(chan struct{})}
	for _, address := range cfg.Backends {
		each, err := newBackend(address, security, connect)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.Backends = append(p.Backends, each)
		stats.BackendUp.WithLabelValues(each.Name).Set(0)
	}
	p.unknown = len(p.Backends)
	p.Candidates.Store(&candidates{})
	return p, nil
}

// Start watches every backend until `close`.
func (p *Pool) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.StopWatching = cancel
	for _, each := range p.Backends {
		p.Watchers.Go(func() {
			each.Watch(ctx, func(now Health) { p.Update(each, now) })
		})
	}
}

// Close ends the watchers and all connections.
func (p *Pool) Close() {
	if p.StopWatching != nil {
		p.StopWatching()
	}
	for _, each := range p.Backends {
		each.hangUp()
	}
	p.Watchers.Wait()
}

// Update takes note of a backend's health.
func (p *Pool) Update(changed *Backend, now Health) {
	p.lock.Lock()
	defer p.lock.Unlock()
	before := changed.health
	changed.health = now
	chosen := p.choose()
	p.Candidates.Store(chosen)
	if p.OnChange != nil {
		p.OnChange(chosen.IsReady)
	}
	if now.State != StateDown && !p.wasReached {
		p.wasReached = true
		close(p.Reached)
	}
	if now.State == StateServing && !p.hasServed {
		p.hasServed = true
		close(p.Serving)
	}
	if before.Reason == notConnectedYet && now.Reason != notConnectedYet {
		if p.unknown--; p.unknown == 0 {
			close(p.Known)
		}
	}
	if before.State == now.State && before.Reason != notConnectedYet {
		return
	}
	if now.State == StateServing {
		p.stats.BackendUp.WithLabelValues(changed.Name).Set(1)
		p.log.Info("backend " + changed.Name + " serves")
		return
	}
	p.stats.BackendUp.WithLabelValues(changed.Name).Set(0)
	p.log.Warn("backend " + changed.Name + " gets no requests: " + now.Reason)
}

// choose returns the backends to ask; the lock is held.
func (p *Pool) choose() *candidates {
	chosen := candidates{AllLocal: true, AllTakeJSON: true}
	for _, wanted := range []State{StateServing, StateConnected} {
		for _, each := range p.Backends {
			if each.health.State != wanted {
				continue
			}
			chosen.RPC = append(chosen.RPC, each)
			traits := each.Traits()
			chosen.WantHeaders = chosen.WantHeaders || traits.WantsHeaders
			chosen.AllLocal = chosen.AllLocal && traits.IsLocal
			chosen.AllTakeJSON = chosen.AllTakeJSON && traits.TakesJSON
			if each.Web != nil {
				chosen.Web = append(chosen.Web, each)
			}
			if linked, isLink := each.Upstream.(*Link); isLink {
				chosen.Links = append(chosen.Links, linked.Client)
			}
		}
		if len(chosen.RPC) > 0 {
			chosen.IsReady = wanted == StateServing
			return &chosen
		}
	}
	return &candidates{}
}

// AwaitKnown waits until something is known of every backend. Callers who come before, such as those
// who queue at the socket of a gateway that is started anew, would be told that there is none.
func (p *Pool) AwaitKnown(limit time.Duration) {
	select {
	case <-p.Known:
	case <-time.After(limit):
	}
}

// IsReady says whether any backend serves.
func (p *Pool) IsReady() bool { return p.Candidates.Load().IsReady }

// Unary asks one backend, and another one only if the call cannot have been seen. Its error is a *failure.Error, or
// one of package context.
func (p *Pool) Unary(ctx context.Context, call *Call) ([]byte, error) {
	var asked []*Backend
	for {
		chosen, err := p.next(call, asked)
		if err != nil {
			return nil, err
		}
		answer, err := chosen.Unary(ctx, call)
		if !errors.Is(err, ErrNeverLeft) || ctx.Err() != nil {
			return answer, err
		}
		asked = append(asked, chosen)
	}
}

// Links returns the links to ask for a call, beginning with the one whose turn it is.
func (p *Pool) Links() []*link.Client {
	links := p.Candidates.Load().Links
	if len(links) < 2 {
		return links
	}
	turn := int(p.Turns.rpc.Add(1) % uint64(len(links)))
	return slices.Concat(links[turn:], links[:turn])
}

// next returns whose turn it is, and notes it. Its error is a *failure.Error.
func (p *Pool) next(call *Call, asked []*Backend) (*Backend, error) {
	chosen := Pick(p.Candidates.Load().RPC, &p.Turns.rpc, asked)
	if len(asked) > 0 {
		p.stats.Retries.Inc()
	}
	if chosen == nil {
		return nil, p.Nobody()
	}
	call.Asked = chosen.Name
	return chosen, nil
}

// Pick returns whose turn it is in a list, without those that were asked; nil: nobody's. A second
// attempt takes no turn of its own, so that all keep their share.
func Pick(list []*Backend, next *atomic.Uint64, asked []*Backend) *Backend {
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

// Nobody answers a request that no backend can be asked for.
func (p *Pool) Nobody() *failure.Error {
	p.lock.Lock()
	defer p.lock.Unlock()
	reasons := make([]string, 0, len(p.Backends))
	for _, each := range p.Backends {
		if each.health.State != StateServing {
			reasons = append(reasons, each.Name+": "+each.health.Reason)
		}
	}
	if len(reasons) == 0 {
		return failure.Unavailable("no backend could be reached; try again")
	}
	return failure.Unavailable("no backend is up: " + strings.Join(reasons, "; "))
}
