package upstream

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/balance"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/metrics"
)

// Pool is all backends. The next one to ask is read without a lock; the lists change only with the list of
// backends, and the health of one.
type Pool struct {
	log      *slog.Logger
	stats    *metrics.Stats
	security *config.BackendTLS
	connect  Connect
	grace    time.Duration // for the requests of a backend that is out of the list

	policy     string
	ejection   balance.EjectionLimits
	hedgeAfter time.Duration // 0: never
	budget     *balance.Budget
	sequences  *balance.Sequences[*Backend] // nil: it does not matter who has one

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
	turns        [works]atomic.Uint64
	StopWatching context.CancelFunc
	OnChange     func(isReady bool) // set before Start; told what IsReady says now, whenever a backend changes
	Watchers     sync.WaitGroup
}

// candidates are the backends to ask: the serving ones or, if there are none, the connected ones, whose own
// answer then counts.
type candidates struct {
	RPC     []*Backend
	Web     []*Backend     // those of them whose HTTP port is known
	Links   []*link.Client // those of them that are reached by one
	IsReady bool
	HasWeb  bool // at least one backend has an HTTP port, even if it is down

	WantHeaders bool // one of them receives all headers
	AllLocal    bool // see Traits
	AllTakeJSON bool
	AllTakePOST bool
	WantTrace   bool
}

// NewPool prepares the backends of a command line; Set says which there are from then on, Start connects to
// them.
func NewPool(cfg config.Config, connect Connect, log *slog.Logger, stats *metrics.Stats) (*Pool, error) {
	security, err := config.LoadBackendTLS(cfg.BackendTLS)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		log: log, stats: stats, security: security, connect: connect, grace: cfg.Grace,
		policy: cfg.Balancing.Policy, ejection: cfg.Balancing.Ejection, hedgeAfter: cfg.Balancing.HedgeAfter,
		budget:  balance.NewBudget(cfg.Balancing.RetryShare, cfg.Balancing.RetryRate, time.Now()),
		Serving: make(chan struct{}), Known: make(chan struct{}), Reached: make(chan struct{}),
	}
	if p.policy == config.Sticky {
		p.sequences = balance.NewSequences[*Backend]()
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
	changed.isReached.Store(now.State != StateDown)
	if !slices.Contains(p.members, changed) { // it is let go
		return
	}
	if changed.isEjected && before.State == StateDown && now.State == StateServing {
		p.tryAgain(changed) // it may be another process
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

// tellKnown notifies the waiting callers when something is known of every backend; the lock is held.
func (p *Pool) tellKnown() {
	if p.isKnown || slices.ContainsFunc(p.members, func(each *Backend) bool { return each.health.Reason == notConnectedYet }) {
		return
	}
	p.isKnown = true
	close(p.Known)
}

// rechoose makes a new list of the servers to ask; the lock is held.
func (p *Pool) rechoose() {
	chosen := p.choose()
	chosen.HasWeb = slices.ContainsFunc(p.members, func(each *Backend) bool { return each.Web != nil })
	p.Candidates.Store(chosen)
	if p.OnChange != nil {
		p.OnChange(chosen.IsReady)
	}
}

// rank says which backends are asked first: serving ones, ejected ones, then the ones whose own answer
// counts.
func (b *Backend) rank() int {
	switch {
	case b.health.State == StateServing && !b.isEjected:
		return 0
	case b.health.State == StateServing:
		return 1
	case b.health.State == StateConnected:
		return lastRank
	}
	return lastRank + 1
}

const lastRank = 2

// choose returns the backends to ask; the lock is held.
func (p *Pool) choose() *candidates {
	best := lastRank
	for _, each := range p.members {
		best = min(best, each.rank())
	}
	chosen := candidates{AllLocal: true, AllTakeJSON: true, AllTakePOST: true, IsReady: best < lastRank}
	for _, each := range p.members {
		if each.rank() == best {
			chosen.add(each)
		}
	}
	if len(chosen.RPC) == 0 {
		return &candidates{}
	}
	return &chosen
}

// add adds a backend, whose traits may be other ones than those of the others.
func (c *candidates) add(each *Backend) {
	c.RPC = append(c.RPC, each)
	traits := each.Traits()
	c.WantHeaders = c.WantHeaders || traits.WantsHeaders
	c.AllLocal = c.AllLocal && traits.IsLocal
	c.AllTakeJSON = c.AllTakeJSON && traits.TakesJSON
	c.AllTakePOST = c.AllTakePOST && traits.TakesPOST
	c.WantTrace = c.WantTrace || traits.WantsTrace
	if each.Web != nil {
		c.Web = append(c.Web, each)
	}
	if linked, isLink := each.Upstream.(*Link); isLink {
		c.Links = append(c.Links, linked.Client)
	}
}

// AwaitKnown waits until the state of every backend is known. Earlier callers, for example in the queue at the
// socket of a restarted gateway, would get the answer that there is no backend.
func (p *Pool) AwaitKnown(limit time.Duration) {
	select {
	case <-p.Known:
	case <-time.After(limit):
	}
}

// IsReady says whether a backend serves.
func (p *Pool) IsReady() bool { return p.Candidates.Load().IsReady }

// Unary asks one backend, and another one only if that is safe: see Ask. Its error is a *failure.Error, or
// one of package context.
func (p *Pool) Unary(ctx context.Context, call *Call) (Reply, error) {
	want := &Want{Work: Calls, IsSafe: call.IsSafe, MayHedge: call.IsSafe && call.Block == nil, Step: call.Step, First: call.First}
	answer, err := Ask(ctx, p, want, func(ctx context.Context, chosen *Attempt) (Reply, error) {
		answer, err := chosen.Unary(ctx, call)
		if err == nil && answer.Long != nil {
			chosen.Keep()(OutcomeOfAnswer(answer.Head.Status, answer.Head.Header))
		}
		return answer, err
	})
	call.Asked = want.Asked
	return answer, err
}

// Place returns memory of the backend whose turn it is, for a long message, of which the byte at `lead` is
// aligned, and who that is. A nil
// block: there is none.
func (p *Pool) Place(size, lead int) (*arena.Block, *Backend) {
	if p.IsSticky() && len(p.Candidates.Load().RPC) > 1 {
		return nil, nil // whose turn it is the message says
	}
	chosen := p.pick(&Want{Work: Calls}, nil)
	if chosen == nil {
		return nil, nil
	}
	linked, isLink := chosen.Upstream.(*Link)
	if !isLink {
		return nil, nil
	}
	return linked.Place(size, lead), chosen
}

// Links returns the links to ask for a call, beginning with the one whose turn it is.
func (p *Pool) Links() []*link.Client {
	links := p.Candidates.Load().Links
	if len(links) < 2 {
		return links
	}
	turn := int(p.turns[Calls].Add(1) % uint64(len(links)))
	return slices.Concat(links[turn:], links[:turn])
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
