package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/pipelinepb"
)

const backoffFactor = 1.6

var errClosed = errors.New("the gateway closes it")

// link asks the server whose child the gateway is; see linkframe.go for what they say.
type link struct {
	place   endpoint
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

// beatsFor returns those of a server that is given up after so long.
func beatsFor(stall time.Duration) beats {
	patience := max(ticksOfHalf, int(stall/(2*longestTick)))
	every := max(stall/time.Duration(2*patience), time.Millisecond)
	return beats{patience, func() (<-chan time.Time, func()) {
		ticker := time.NewTicker(every)
		return ticker.C, ticker.Stop
	}, stall}
}

func newLink(place endpoint, watched beats) *link { return &link{place: place, beats: watched} }

// ask returns the server's answer. Its error is a *refusal, errNeverLeft, or that of ctx.
func (l *link) ask(ctx context.Context, request *pipelinepb.Request, header http.Header, limit deadline) (*pipelinepb.Response, error) {
	conn := l.current.Load()
	if conn == nil {
		return nil, errNeverLeft
	}
	var headers []byte
	if conn.wantsHeaders.Load() {
		var err error
		if headers, err = headerField(callOf(ctx)); err != nil {
			return nil, err
		}
	}
	return conn.ask(ctx, request, traceparentOf(header), headers, limit)
}

// wantsHeaders says whether the server has to be told the headers of requests.
func (l *link) wantsHeaders() bool {
	conn := l.current.Load()
	return conn != nil && conn.wantsHeaders.Load()
}

// traceparentOf returns the caller's, of several the last, if it can be one.
func traceparentOf(header http.Header) string {
	said := header["Traceparent"]
	if len(said) == 0 || len(said[len(said)-1]) > mostTraceBytes {
		return ""
	}
	return said[len(said)-1]
}

// watch keeps a connection, and reports the health of the server whenever it changes, until ctx
// ends.
func (l *link) watch(ctx context.Context, report func(health)) {
	wait := firstBackoff
	for {
		isReached := false
		err := l.follow(ctx, func(now health) {
			isReached = true
			report(now)
		})
		if ctx.Err() != nil {
			return
		}
		report(health{stateDown, err.Error()})
		if isReached {
			wait = firstBackoff
		}
		if !sleep(ctx, wait) {
			return
		}
		wait = min(time.Duration(float64(wait)*backoffFactor), lastBackoff)
	}
}

// follow connects, and reads until the connection is gone. It says why.
func (l *link) follow(ctx context.Context, report func(health)) error {
	raw, err := dialerTo(l.place)(ctx, "")
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
	report func(health)

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
		p.report(health{stateConnected, fmt.Sprintf("it has said nothing for %v", p.beats.limit/2)})
	case p.isReady:
		p.report(health{state: stateServing})
	default:
		p.report(health{stateConnected, "it is not ready"})
	}
}

// close has nothing to do: the connection ends with `watch`.
func (*link) close() {}

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
