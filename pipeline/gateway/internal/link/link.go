// Package link asks the server whose child the gateway is, over a Unix socket.
package link

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/sockets"
	"pipeline/gateway/internal/upstream"
)

const backoffFactor = 1.6

var errClosed = errors.New("the gateway closes it")

// Link asks the server whose child the gateway is; see linkframe.go for what they say.
type Link struct {
	place   sockets.Endpoint
	beats   beats
	current atomic.Pointer[linkConn] // nil: there is no connection
}

// beats says how a link's server is watched: as silent if it says nothing for some ticks, and as gone if it
// does so for twice as many.
type beats struct {
	patience int
	tick     func() (ticks <-chan time.Time, stop func())
	limit    time.Duration // all of that, for texts
}

const (
	longestTick = 500 * time.Millisecond
	ticksOfHalf = 2
)

// BeatsFor returns those of a server that is given up after so long.
func BeatsFor(stall time.Duration) beats {
	patience := max(ticksOfHalf, int(stall/(2*longestTick)))
	every := max(stall/time.Duration(2*patience), time.Millisecond)
	return beats{patience, func() (<-chan time.Time, func()) {
		ticker := time.NewTicker(every)
		return ticker.C, ticker.Stop
	}, stall}
}

func New(place sockets.Endpoint, watched beats) *Link { return &Link{place: place, beats: watched} }

// Unary returns the server's answer: see Upstream.
func (l *Link) Unary(ctx context.Context, call *upstream.Call) ([]byte, error) {
	conn := l.current.Load()
	if conn == nil {
		return nil, upstream.ErrNeverLeft
	}
	return conn.ask(ctx, call)
}

// Stream is not to be had of this version of the link.
func (*Link) Stream(context.Context, *upstream.Call) (upstream.Stream, error) {
	return nil, &failure.Error{Status: http.StatusNotImplemented, ErrNo: failure.CodeNotImplemented, Text: "the link has no streams yet"}
}

// Traits returns what is known of the server.
func (l *Link) Traits() upstream.Traits {
	conn := l.current.Load()
	return upstream.Traits{IsLocal: true, WantsHeaders: conn != nil && conn.wantsHeaders.Load()}
}

// Held returns how many calls wait for an answer, and how many messages to be written.
func (l *Link) Held() (calls, messages int) {
	conn := l.current.Load()
	if conn == nil {
		return 0, 0
	}
	conn.lock.Lock()
	defer conn.lock.Unlock()
	return len(conn.calls), conn.queue.begun.Len() + conn.queue.fresh.Len()
}

// Watch keeps a connection, and reports the health of the server whenever it changes, until ctx
// ends.
func (l *Link) Watch(ctx context.Context, report func(upstream.Health)) {
	wait := sockets.FirstBackoff
	for {
		isReached := false
		err := l.follow(ctx, func(now upstream.Health) {
			isReached = true
			report(now)
		})
		if ctx.Err() != nil {
			return
		}
		report(upstream.Health{State: upstream.StateDown, Reason: err.Error()})
		if isReached {
			wait = sockets.FirstBackoff
		}
		if !clock.Sleep(ctx, wait) {
			return
		}
		wait = min(time.Duration(float64(wait)*backoffFactor), sockets.LastBackoff)
	}
}

// follow connects, and reads until the connection is gone. It says why.
func (l *Link) follow(ctx context.Context, report func(upstream.Health)) error {
	raw, err := sockets.DialerTo(l.place)(ctx, "")
	if err != nil {
		return err
	}
	conn := newLinkConn(raw)
	defer context.AfterFunc(ctx, func() { conn.close(errClosed) })()
	pulse := &pulse{beats: l.beats, report: report}
	var helpers sync.WaitGroup
	helpers.Go(conn.write)
	ticks, stop := l.beats.tick()
	defer stop()
	helpers.Go(func() { conn.beat(ticks, l.beats.patience, pulse.silence) })
	err = conn.read(func(isReady bool) {
		l.current.Store(conn)
		pulse.ready(isReady)
	})
	l.current.Store(nil)
	conn.close(err)
	helpers.Wait()
	return conn.failure
}

// pulse is what is known of a server: what it says, and whether it says anything.
type pulse struct {
	beats  beats
	report func(upstream.Health)

	lock                       sync.Mutex
	isKnown, isReady, isSilent bool
}

func (p *pulse) ready(isReady bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.isKnown, p.isReady = true, isReady
	p.tell()
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
		p.report(upstream.Health{State: upstream.StateConnected, Reason: fmt.Sprintf("it has said nothing for %v", p.beats.limit/2)})
	case p.isReady:
		p.report(upstream.Health{State: upstream.StateServing})
	default:
		p.report(upstream.Health{State: upstream.StateConnected, Reason: "it is not ready"})
	}
}

// Close has nothing to do: the connection ends with `Watch`.
func (*Link) Close() {}
