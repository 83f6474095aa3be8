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

// Pool is all backends. Who is asked next is read without a lock; the lists change only with the list of backends, and the
// health of one.
type Pool struct {
	log      *slog.Logger
	stats    *metrics.Stats
	security *config.BackendTLS
	connect  Connect
	grace    time.Duration // for the requests of a backend that is out of the list

	lock       sync.Mutex
	members    []*Backend
	retired    []*Backend      // out of the list, and not let go yet
	watching   context.Context // nil: not started
	isClosed   bool
	Serving    chan struct{} // closed as soon as the first backend serves
	hasServed  bool
	Known      chan struct{} // closed as soon as something is known of every backend
	isKnown    bool
	Reached    chan struct{} // closed as soon as the first backend is connected
	wasReached bool

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
	HasWeb  bool // any backend that there is has an HTTP port, be it down

	WantHeaders bool // one of them is told all headers
	AllLocal    bool // see Traits
	AllTakeJSON bool
}

// NewPool prepares the backends of a command line; Set says which there are from then on, Start connects to them.
func NewPool(cfg config.Config, connect Connect, log *slog.Logger, stats *metrics.Stats) (*Pool, error) {
	security, err := config.LoadBackendTLS(cfg.BackendTLS)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		log: log, stats: stats, security: security, connect: connect, grace: cfg.Grace,
		Serving: make(chan struct{}), Known: make(chan struct{}), Reached: make(chan struct{}),
	}
	p.Candidates.Store(&candidates{})
	p.Set(cfg.Backends)
	stats.WatchBackends(p.Figures)
	return p, nil
}

// Start watches every backend until `close`.
func (p *Pool) Start() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.watching, p.StopWatching = context.WithCancel(context.Background())
	for _, each := range p.members {
		p.watch(each)
	}
	p.tellKnown()
}

// Close ends the watchers and all connections.
func (p *Pool) Close() {
	p.lock.Lock()
	p.isClosed = true
	if p.StopWatching != nil {
		p.StopWatching()
	}
	all := slices.Concat(p.members, p.retired)
	p.lock.Unlock()
	for _, each := range all {
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
	if !slices.Contains(p.members, changed) { // it is let go
		return
	}
	p.rechoose()
	if now.State != StateDown && !p.wasReached {
		p.wasReached = true
		close(p.Reached)
	}
	if now.State == StateServing && !p.hasServed {
		p.hasServed = true
		close(p.Serving)
	}
	p.tellKnown()
	switch {
	case before.State == now.State && before.Reason != notConnectedYet:
	case now.State == StateServing:
		p.log.Info("backend " + changed.Name + " serves")
	default:
		p.log.Warn("backend " + changed.Name + " gets no requests: " + now.Reason)
	}
}

// tellKnown tells those who wait when something is known of every backend; the lock is held.
func (p *Pool) tellKnown() {
	if p.isKnown || slices.ContainsFunc(p.members, func(each *Backend) bool { return each.health.Reason == notConnectedYet }) {
		return
	}
	p.isKnown = true
	close(p.Known)
}

// rechoose makes the list of those to ask anew; the lock is held.
func (p *Pool) rechoose() {
	chosen := p.choose()
	chosen.HasWeb = slices.ContainsFunc(p.members, func(each *Backend) bool { return each.Web != nil })
	p.Candidates.Store(chosen)
	if p.OnChange != nil {
		p.OnChange(chosen.IsReady)
	}
}

// choose returns the backends to ask; the lock is held.
func (p *Pool) choose() *candidates {
	chosen := candidates{AllLocal: true, AllTakeJSON: true}
	for _, wanted := range []State{StateServing, StateConnected} {
		for _, each := range p.members {
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
		chosen.Begin()
		answer, err := chosen.Unary(ctx, call)
		chosen.End()
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
	if len(p.members) == 0 {
		return failure.Unavailable("there is no backend: the list of them is empty")
	}
	reasons := make([]string, 0, len(p.members))
	for _, each := range p.members {
		if each.health.State != StateServing {
			reasons = append(reasons, each.Name+": "+each.health.Reason)
		}
	}
	if len(reasons) == 0 {
		return failure.Unavailable("no backend could be reached; try again")
	}
	return failure.Unavailable("no backend is up: " + strings.Join(reasons, "; "))
}
