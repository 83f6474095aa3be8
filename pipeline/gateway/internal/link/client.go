package link

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/link/frame"
)

const (
	firstBackoff  = 50 * time.Millisecond
	lastBackoff   = 2 * time.Second
	backoffFactor = 1.6
	longestTick   = 500 * time.Millisecond
	ticksOfHalf   = 2
)

var errClosed = errors.New("the gateway closes it")

// Config says how a server is reached.
type Config struct {
	Dial   func(context.Context) (net.Conn, error)
	Secret func() (string, error) // that the server asks for, looked up for each connection; nil: none
	Stall  time.Duration          // a server that says nothing for so long is given up, and gets nothing new after half of it

	ticks func() (ticks <-chan time.Time, stop func()) // of tests
}

// Phase is what is known of a server.
type Phase int

// Phases, from the worst to the best.
const (
	Down      Phase = iota // there is no connection to it
	Connected              // it says that it is not ready, or says nothing now
	Serving
)

// State is the phase of a server, and the reason why it is not ready.
type State struct {
	Phase  Phase
	Reason string
}

// Peer is what a server says of itself.
type Peer struct {
	Methods         map[string]Method
	WantsTrace      bool  // traceparent as metadata
	WantsHeaders    bool  // all headers as metadata: it has hooks that receive some
	MaxMessageBytes int64 // of what it takes
}

// Method is one that a server has.
type Method struct {
	ID       uint16
	IsStream bool
}

func peerOf(said frame.Greeting) Peer {
	methods := make(map[string]Method, len(said.Methods))
	for _, each := range said.Methods {
		methods[each.Name] = Method{each.ID, each.IsStream}
	}
	limit := said.Limits.MessageBytes
	if limit <= 0 {
		limit = math.MaxInt64
	}
	return Peer{methods, said.Trace, said.Headers, limit}
}

// Client asks one server, and keeps a connection to it as long as Watch runs.
type Client struct {
	config   Config
	patience int                  // ticks without a frame until a server counts as silent; lost after twice as many
	current  atomic.Pointer[conn] // nil: there is no connection
}

// New returns a client. It does not connect before Watch.
func New(config Config) *Client {
	patience := max(ticksOfHalf, int(config.Stall/(2*longestTick)))
	if config.ticks == nil {
		every := max(config.Stall/time.Duration(2*patience), time.Millisecond)
		config.ticks = func() (<-chan time.Time, func()) {
			ticker := time.NewTicker(every)
			return ticker.C, ticker.Stop
		}
	}
	return &Client{config: config, patience: patience}
}

// Peer returns what the server says of itself; nil: there is no connection.
func (c *Client) Peer() *Peer {
	if conn := c.current.Load(); conn != nil {
		return &conn.peer
	}
	return nil
}

// InFlight returns how many calls the server is asked right now.
func (c *Client) InFlight() int {
	conn := c.current.Load()
	if conn == nil {
		return 0
	}
	conn.lock.Lock()
	defer conn.lock.Unlock()
	return len(conn.calls)
}

// AtServer returns how many calls are in flight there, of all its gateways, as it said last: see STATE.
func (c *Client) AtServer() int {
	conn := c.current.Load()
	if conn == nil {
		return 0
	}
	conn.lock.Lock()
	defer conn.lock.Unlock()
	return conn.inFlight
}

// Held returns how many calls wait for an answer, and how many of these to be written.
func (c *Client) Held() (calls, messages int) {
	conn := c.current.Load()
	if conn == nil {
		return 0, 0
	}
	conn.lock.Lock()
	defer conn.lock.Unlock()
	for _, each := range conn.calls {
		if each.in != nil {
			messages++
		}
	}
	return len(conn.calls), messages
}

// Watch keeps a connection, and reports the state of the server whenever it changes, until ctx ends.
func (c *Client) Watch(ctx context.Context, report func(State)) {
	wait := firstBackoff
	for {
		isReached := false
		err := c.follow(ctx, func(now State) {
			isReached = true
			report(now)
		})
		if ctx.Err() != nil {
			return
		}
		report(State{Down, err.Error()})
		if isReached {
			wait = firstBackoff
		}
		if !clock.Sleep(ctx, wait) {
			return
		}
		wait = min(time.Duration(float64(wait)*backoffFactor), lastBackoff)
	}
}

// follow connects, and reads until the connection is gone. It says why.
func (c *Client) follow(ctx context.Context, report func(State)) error {
	secret := ""
	if c.config.Secret != nil {
		var err error
		if secret, err = c.config.Secret(); err != nil {
			return err
		}
	}
	raw, err := c.config.Dial(ctx)
	if err != nil {
		return err
	}
	conn := newConn(raw)
	conn.queue.words = frame.AppendHello(nil, secret)
	notify(conn.wake)
	defer context.AfterFunc(ctx, func() { conn.close(errClosed) })()
	pulse := &pulse{limit: c.config.Stall, report: report}
	var helpers sync.WaitGroup
	helpers.Go(conn.write)
	ticks, stop := c.config.ticks()
	defer stop()
	helpers.Go(func() { conn.beat(ticks, c.patience, pulse.silence) })
	err = conn.read(func() { c.current.Store(conn) }, pulse.ready)
	c.current.Store(nil)
	conn.close(err)
	helpers.Wait()
	return conn.failure
}

// pulse is what is known of a server: what it says, and whether it says anything.
type pulse struct {
	limit  time.Duration
	report func(State)

	lock                       sync.Mutex
	isKnown, isReady, isSilent bool
}

func (p *pulse) ready(isReady bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	isNews := !p.isKnown || p.isReady != isReady
	p.isKnown, p.isReady = true, isReady
	if isNews {
		p.tell()
	}
}

func (p *pulse) silence(isSilent bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.isSilent = isSilent
	p.tell()
}

// tell reports; the lock is held.
func (p *pulse) tell() {
	switch {
	case !p.isKnown:
	case p.isSilent:
		p.report(State{Connected, fmt.Sprintf("it has said nothing for %v", p.limit/2)})
	case p.isReady:
		p.report(State{Phase: Serving})
	default:
		p.report(State{Connected, "it is not ready"})
	}
}
