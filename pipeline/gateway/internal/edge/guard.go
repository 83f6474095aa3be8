package edge

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/sockets"
)

const (
	refusedAtOnce  = 64 // connections that are one too many are given time to read so, as long as they are no more than these
	refusedFor     = time.Second
	refusedQuickly = 5 * time.Millisecond // and the others what the kernel takes at once
	idleLook       = 5 * time.Millisecond

	writeSteps      = 2
	writePieceBytes = 256 << 10
)

// Guard accepts a limited number of connections at a time: one more replaces the one that has been idle for
// longest (it may have sent nothing so far), and is refused if none is idle.
type Guard struct {
	net.Listener
	cfg      *config.Config
	stats    *metrics.Stats
	refusing chan struct{}

	Addresses *access.Addresses // how many of each there may be; nil: any number

	lock   sync.Mutex
	open   int
	idle   *list.List // of net.Conn, as the server knows them; the first for longest
	places map[net.Conn]*list.Element
}

func NewGuard(listener net.Listener, cfg *config.Config, stats *metrics.Stats) *Guard {
	return &Guard{
		Listener: listener, cfg: cfg, stats: stats,
		// Each of these also has a descriptor: with few descriptors there have to be fewer.
		refusing: make(chan struct{}, max(1, min(refusedAtOnce, cfg.MaxConnections/4))),
		idle:     list.New(), places: map[net.Conn]*list.Element{},
	}
}

// Accept waits for the next connection that has a place.
func (g *Guard) Accept() (net.Conn, error) {
	for {
		raw, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		leave, isIn := g.Addresses.Enter(raw)
		if !isIn {
			g.refuse(raw, tooManyOfAddress())
			continue
		}
		if g.enter() {
			g.stats.Connections.Inc()
			sockets.LimitUnsent(raw)
			conn := newGuardedConn(raw, g)
			conn.leave = leave
			return conn, nil
		}
		leave()
		g.refuse(raw, tooManyConnections(g.cfg.MaxConnections))
	}
}

// HandshakeTimeout is what a connection has for TLS.
func (g *Guard) HandshakeTimeout() time.Duration { return g.cfg.HandshakeTimeout }

// enter says whether there is a place for one more.
func (g *Guard) enter() bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	if g.open >= g.cfg.MaxConnections {
		longest := g.idle.Front()
		if longest == nil {
			return false
		}
		conn := g.idle.Remove(longest).(net.Conn)
		delete(g.places, conn)
		go conn.Close() // which leaves in its turn
	}
	g.open++
	return true
}

func (g *Guard) leave() {
	g.stats.Connections.Dec()
	g.lock.Lock()
	g.open--
	g.lock.Unlock()
}

// AwaitIdle waits until no connection is left, or a time has passed: what is asked on one that seems to be
// idle may be on its way.
func (g *Guard) AwaitIdle(ctx context.Context, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); {
		g.lock.Lock()
		open := g.open
		g.lock.Unlock()
		if open == 0 || !clock.Sleep(ctx, idleLook) {
			return
		}
	}
}

// Note receives from the server what a connection does.
func (g *Guard) Note(conn net.Conn, now http.ConnState) {
	g.lock.Lock()
	defer g.lock.Unlock()
	if place, isIdle := g.places[conn]; isIdle {
		g.idle.Remove(place)
		delete(g.places, conn)
	}
	if now == http.StateIdle || now == http.StateNew {
		g.places[conn] = g.idle.PushBack(conn)
	}
}

// HungUp counts a connection that was ended for too many frames.
func (g *Guard) HungUp(reason string) { g.stats.HungUp(reason) }

// refuse says why, to who can read it, and hangs up.
func (g *Guard) refuse(raw net.Conn, why *failure.Error) {
	g.stats.RefusedConnections.Inc()
	select {
	case g.refusing <- struct{}{}:
	default:
		if g.cfg.TLS.Cert == "" {
			_ = raw.SetDeadline(time.Now().Add(refusedQuickly))
			_, _ = raw.Write(written(why))
		}
		_ = raw.Close()
		return
	}
	go func() {
		defer func() { <-g.refusing }()
		defer raw.Close()
		if g.cfg.TLS.Cert != "" {
			return
		}
		_ = raw.SetDeadline(time.Now().Add(refusedFor))
		_, _ = raw.Write(written(why))
		hangUpGently(raw, refusedFor)
	}()
}

// guardedConn gives up a caller that takes nothing of what it is sent for the write timeout, or does not
// come to an end with its TLS handshake.
type guardedConn struct {
	net.Conn
	guard *Guard
	once  sync.Once
	leave func() // of its address

	lock        sync.Mutex
	handshakeBy time.Time // zero: it is done
	writeBy     time.Time // zero: only the write timeout counts
}

func newGuardedConn(raw net.Conn, from *Guard) *guardedConn {
	conn := &guardedConn{Conn: raw, guard: from, leave: func() {}}
	if from.cfg.TLS.Cert != "" {
		conn.handshakeBy = time.Now().Add(from.cfg.HandshakeTimeout)
		_ = raw.SetReadDeadline(conn.handshakeBy)
	}
	return conn
}

// Write sends data as long as the peer takes some of it within each write timeout, which is seen in steps.
func (c *guardedConn) Write(data []byte) (written int, err error) {
	for silent := 0; ; silent++ {
		limit := time.Now().Add(c.guard.cfg.WriteTimeout / writeSteps)
		isLast := false
		c.lock.Lock()
		if !c.writeBy.IsZero() && c.writeBy.Before(limit) {
			limit, isLast = c.writeBy, true
		}
		_ = c.Conn.SetWriteDeadline(limit)
		c.lock.Unlock()
		n, err := c.Conn.Write(data[written:min(written+writePieceBytes, len(data))])
		if written += n; n > 0 {
			silent = -1
		}
		isMore := err == nil && written < len(data)
		isSlow := errors.Is(err, os.ErrDeadlineExceeded) && silent+1 < writeSteps && !isLast
		if !isMore && !isSlow {
			return written, err
		}
	}
}

// SetWriteDeadline bounds the time of all writes, besides the write timeout.
func (c *guardedConn) SetWriteDeadline(limit time.Time) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.writeBy = limit
	return c.Conn.SetWriteDeadline(limit)
}

// SetReadDeadline bounds the time to read. The server takes the bound off when the handshake is done.
func (c *guardedConn) SetReadDeadline(limit time.Time) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	switch {
	case limit.IsZero():
		c.handshakeBy = time.Time{}
	case !c.handshakeBy.IsZero() && c.handshakeBy.Before(limit):
		limit = c.handshakeBy
	}
	return c.Conn.SetReadDeadline(limit)
}

// SetDeadline bounds both.
func (c *guardedConn) SetDeadline(limit time.Time) error {
	if err := c.SetReadDeadline(limit); err != nil {
		return err
	}
	return c.SetWriteDeadline(limit)
}

// Close hangs up, and makes room for another one.
func (c *guardedConn) Close() error {
	c.once.Do(func() {
		c.leave()
		c.guard.leave()
	})
	return c.Conn.Close()
}

// CloseWrite says that no more follows.
func (c *guardedConn) CloseWrite() error {
	if half, ok := c.Conn.(closeWriter); ok {
		return half.CloseWrite()
	}
	return nil
}
