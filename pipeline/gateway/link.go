package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"pipeline/gateway/pipelinepb"
)

const backoffFactor = 1.6

var errClosed = errors.New("the gateway closes it")

// link asks the server whose child the gateway is; see linkframe.go for what they say.
type link struct {
	place   endpoint
	current atomic.Pointer[linkConn] // nil: there is no connection
}

func newLink(place endpoint) *link { return &link{place: place} }

// ask returns the server's answer. Its error is a *refusal, errNeverLeft, or that of ctx.
func (l *link) ask(ctx context.Context, request *pipelinepb.Request, header http.Header, limit deadline) (*pipelinepb.Response, error) {
	conn := l.current.Load()
	if conn == nil {
		return nil, errNeverLeft
	}
	return conn.ask(ctx, request, traceparentOf(header), limit)
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
		err := l.follow(ctx, func(isReady bool) {
			isReached = true
			if isReady {
				report(health{state: stateServing})
			} else {
				report(health{stateConnected, "it is not ready"})
			}
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
func (l *link) follow(ctx context.Context, report func(isReady bool)) error {
	raw, err := dialerTo(l.place)(ctx, "")
	if err != nil {
		return err
	}
	conn := newLinkConn(raw)
	defer context.AfterFunc(ctx, func() { conn.close(errClosed) })()
	go conn.write()
	err = conn.read(func(isReady bool) {
		l.current.Store(conn)
		report(isReady)
	})
	l.current.Store(nil)
	conn.close(err)
	return err
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
