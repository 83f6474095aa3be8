package link

import (
	"bufio"
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/upstream"
)

const linkReadBytes = 64 << 10

// linkConn is one connection of a link. Whoever asks puts a message into the queue; one goroutine
// writes what is there, another one reads the answers, and a third one looks whether any come.
type linkConn struct {
	raw  net.Conn
	wake chan struct{} // something was queued
	gone chan struct{} // closed when the connection is

	wasHeard     atomic.Bool // since the last look
	wantsHeaders atomic.Bool // the server forwards some to its hooks

	lock    sync.Mutex
	lastID  uint64
	queue   linkQueue
	calls   map[uint64]*linkCall
	failure error // not nil: it is closed
}

// linkCall is a request that waits for its answer.
type linkCall struct {
	answered chan linkAnswer // has room for the one answer
	message  *linkMessage
	share    *memory.Share // of who asks
	pieces   [][]byte      // of the answer, as far as it is here, in buffers to be released
}

type linkAnswer struct {
	kind   byte
	pieces [][]byte
	err    error
}

var linkCalls = sync.Pool{New: func() any { return &linkCall{answered: make(chan linkAnswer, 1)} }}

func newLinkConn(raw net.Conn) *linkConn {
	return &linkConn{
		raw:   raw,
		wake:  make(chan struct{}, 1),
		gone:  make(chan struct{}),
		calls: map[uint64]*linkCall{},
	}
}

// ask sends a request and waits for its answer. Its error is a *failure.Error, ErrNeverLeft, or that of
// ctx.
func (c *linkConn) ask(ctx context.Context, call *upstream.Call) ([]byte, error) {
	held := call.Share
	if held == nil {
		held = &memory.Share{Of: memory.NewBudget(math.MaxInt64)}
	}
	data, err := askMessage(call, c.wantsHeaders.Load())
	if err != nil {
		return nil, err
	}
	asked := linkCalls.Get().(*linkCall)
	defer func() {
		asked.share, asked.message = nil, nil
		linkCalls.Put(asked)
	}()
	asked.share, asked.message = held, &linkMessage{kind: frame.Ask, data: data}
	if err := c.send(asked); err != nil {
		return nil, err
	}
	var answer linkAnswer
	select {
	case answer = <-asked.answered:
	case <-ctx.Done():
		if c.forget(asked.message.id) {
			return nil, ctx.Err()
		}
		answer = <-asked.answered // it came at the same moment
	}
	if answer.err != nil {
		return nil, answer.err
	}
	return answer.read()
}

// read returns the answer, in a buffer that may be released, or the failure.
func (a linkAnswer) read() ([]byte, error) {
	body := a.pieces[0]
	if len(a.pieces) > 1 {
		body = slices.Concat(a.pieces...)
		buffers.ReleaseAll(a.pieces)
	}
	if a.kind == frame.Failure {
		defer buffers.Release(body)
		return nil, failureOf(body)
	}
	return body, nil
}

// send queues a request. Its error is ErrNeverLeft.
func (c *linkConn) send(asked *linkCall) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil {
		buffers.Release(asked.message.data)
		return upstream.ErrNeverLeft
	}
	c.lastID++
	asked.message.id = c.lastID
	c.calls[c.lastID] = asked
	c.enqueue(asked.message)
	return nil
}

// forget drops a call whose caller does not wait; false: it is answered.
func (c *linkConn) forget(id uint64) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	asked, waits := c.calls[id]
	if waits {
		c.abandon(asked)
	}
	return waits
}

// abandon drops a call. What has not left stays here, and of what has the server is told; the lock is held.
func (c *linkConn) abandon(asked *linkCall) {
	message := asked.message
	delete(c.calls, message.id)
	buffers.ReleaseAll(asked.pieces)
	asked.pieces = nil
	c.queue.drop(message)
	if message.begun {
		c.enqueue(word(frame.Cancel, message.id))
	}
}

// enqueue adds a message to what is to be written; the lock is held.
func (c *linkConn) enqueue(message *linkMessage) {
	c.queue.add(message)
	select {
	case c.wake <- struct{}{}:
	default: // it is going to look anyway
	}
}

// write sends what is queued until the connection is gone.
func (c *linkConn) write() {
	batch := newLinkBatch()
	var room [][]byte
	for {
		select {
		case <-c.wake:
		case <-c.gone:
			return
		}
		runtime.Gosched() // who is about to ask comes along: one system call for all
		for c.take(batch) {
			room = append(room[:0], batch.vector...)
			buffers := net.Buffers(room)
			if _, err := buffers.WriteTo(c.raw); err != nil {
				c.close(err)
				return
			}
			batch.sent()
		}
	}
}

// take fills a batch with what is next; false: there is nothing.
func (c *linkConn) take(batch *linkBatch) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.queue.isEmpty() || c.failure != nil {
		return false
	}
	c.queue.take(batch)
	return true
}

// read delivers answers until the connection is gone, and says why it is. What the server says of
// its health is reported.
func (c *linkConn) read(report func(isReady bool)) error {
	source := bufio.NewReaderSize(c.raw, linkReadBytes)
	last := byte(frame.Ready) // of the kinds that may come: it says first how it is
	for {
		got, err := frame.Read(source, frame.Ready, last)
		if err != nil {
			return err
		}
		c.wasHeard.Store(true)
		switch got.Kind {
		case frame.Ready:
			isReady, wantsHeaders, err := frame.ReadyOf(got.Body)
			if err != nil {
				return err
			}
			c.wantsHeaders.Store(wantsHeaders)
			report(isReady)
			last = frame.Pong
			buffers.Release(got.Body)
		case frame.Pong:
			buffers.Release(got.Body)
		default:
			c.deliver(got)
		}
	}
}

// deliver gives an answer, or a piece of one, to who waits for it.
func (c *linkConn) deliver(got frame.Frame) {
	c.lock.Lock()
	defer c.lock.Unlock()
	asked, waits := c.calls[got.ID]
	if !waits { // no more
		buffers.Release(got.Body)
		return
	}
	asked.pieces = append(asked.pieces, got.Body)
	if got.Kind == frame.MoreBack {
		if err := asked.share.Need(int64(len(got.Body))); err != nil {
			c.abandon(asked)
			asked.answered <- linkAnswer{err: err}
		}
		return
	}
	delete(c.calls, got.ID)
	answer := linkAnswer{kind: got.Kind, pieces: asked.pieces}
	asked.pieces = nil
	asked.answered <- answer // from here on it may be another connection's
}

// beat asks the server at every tick for a sign of life. It reports when there was none for some ticks, and
// when there is one again, and closes the connection when there was none for twice as many.
func (c *linkConn) beat(ticks <-chan time.Time, patience int, report func(isSilent bool)) {
	for silent := 0; ; {
		select {
		case <-ticks:
		case <-c.gone:
			return
		}
		wasSilent := silent >= patience
		silent++
		if c.wasHeard.Swap(false) {
			silent = 0
		}
		if isSilent := silent >= patience; isSilent != wasSilent {
			report(isSilent)
		}
		if silent >= 2*patience {
			c.close(errSilent)
			return
		}
		if silent <= 1 { // else it has one to answer
			c.lock.Lock()
			c.enqueue(word(frame.Ping, 0))
			c.lock.Unlock()
		}
	}
}

var errSilent = errors.New("it has stopped answering")

// close ends the connection. Those who wait are told, and who may be asked again.
func (c *linkConn) close(why error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil {
		return
	}
	c.failure = why
	close(c.gone)
	_ = c.raw.Close() // it fails only if it is closed
	lost := failure.Unavailable("the backend went away with the request: " + why.Error())
	for _, asked := range c.calls {
		buffers.ReleaseAll(asked.pieces)
		asked.pieces = nil
		if asked.message.begun {
			asked.answered <- linkAnswer{err: lost}
		} else {
			asked.answered <- linkAnswer{err: upstream.ErrNeverLeft}
		}
	}
	clear(c.calls)
	c.queue = linkQueue{}
}
