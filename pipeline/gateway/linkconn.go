package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"

	"pipeline/gateway/pipelinepb"
)

const linkReadBytes = 64 << 10

// errNeverLeft says that a backend cannot have seen a request: another one may be asked.
var errNeverLeft = errors.New("the request has not left")

// linkConn is one connection of a link. Whoever asks puts a frame into the queue; one goroutine
// writes all that is there in one go, another one reads the answers.
type linkConn struct {
	raw  net.Conn
	wake chan struct{} // something was queued
	gone chan struct{} // closed when the connection is

	lock    sync.Mutex
	lastID  uint64
	written uint64 // the last id that is, or may be, on its way; ids rise in the queue
	queue   [][]byte
	calls   map[uint64]*linkCall
	failure error // not nil: it is closed
}

// linkCall is a request that waits for its answer.
type linkCall struct {
	answered chan linkAnswer // has room for the one answer
}

type linkAnswer struct {
	frame frame
	err   error
}

var linkCalls = sync.Pool{New: func() any { return &linkCall{make(chan linkAnswer, 1)} }}

func newLinkConn(raw net.Conn) *linkConn {
	return &linkConn{
		raw:   raw,
		wake:  make(chan struct{}, 1),
		gone:  make(chan struct{}),
		calls: map[uint64]*linkCall{},
	}
}

// ask sends a request and waits for its answer. Its error is a *refusal, errNeverLeft, or that of
// ctx.
func (c *linkConn) ask(ctx context.Context, request *pipelinepb.Request, traceparent string, limit deadline) (*pipelinepb.Response, error) {
	asked := linkCalls.Get().(*linkCall)
	defer linkCalls.Put(asked)
	id, err := c.send(asked, request, traceparent, limit)
	if err != nil {
		return nil, err
	}
	var answer linkAnswer
	select {
	case answer = <-asked.answered:
	case <-ctx.Done():
		if c.forget(id) {
			return nil, ctx.Err()
		}
		answer = <-asked.answered // it came at the same moment
	}
	if answer.err != nil {
		return nil, answer.err
	}
	defer releaseBody(answer.frame.body)
	return answerOf(answer.frame)
}

// send queues a request, and returns its id.
func (c *linkConn) send(asked *linkCall, request *pipelinepb.Request, traceparent string, limit deadline) (uint64, error) {
	data, err := askFrame(request, traceparent, limit)
	if err != nil {
		return 0, fmt.Errorf("the request cannot be written: %w", err)
	}
	c.lock.Lock()
	if c.failure != nil {
		c.lock.Unlock()
		releaseBody(data)
		return 0, errNeverLeft
	}
	c.lastID++
	id := c.lastID
	setID(data, id)
	c.calls[id] = asked
	c.enqueue(data)
	c.lock.Unlock()
	return id, nil
}

// forget drops a call whose caller does not wait, and tells the server; false: it is answered.
func (c *linkConn) forget(id uint64) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if _, waits := c.calls[id]; !waits {
		return false
	}
	delete(c.calls, id)
	c.enqueue(cancelFrame(id))
	return true
}

// enqueue adds a frame to what is to be written; the lock is held.
func (c *linkConn) enqueue(data []byte) {
	c.queue = append(c.queue, data)
	if len(c.queue) == 1 {
		select {
		case c.wake <- struct{}{}:
		default: // it is going to look anyway
		}
	}
}

// write sends what is queued until the connection is gone.
func (c *linkConn) write() {
	var frames [][]byte
	var vector [][]byte
	for {
		select {
		case <-c.wake:
		case <-c.gone:
			return
		}
		runtime.Gosched() // who is about to ask comes along: one system call for all
		frames = c.take(frames[:0])
		vector = append(vector[:0], frames...)
		buffers := net.Buffers(vector)
		if _, err := buffers.WriteTo(c.raw); err != nil {
			c.close(err)
			return
		}
		for at, data := range frames {
			releaseBody(data)
			frames[at] = nil
		}
	}
}

// take returns what is queued, and leaves an empty queue in the room of `room`.
func (c *linkConn) take(room [][]byte) [][]byte {
	c.lock.Lock()
	defer c.lock.Unlock()
	taken := c.queue
	c.queue = room
	c.written = c.lastID
	return taken
}

// read delivers answers until the connection is gone, and says why it is. What the server says of
// its health is reported.
func (c *linkConn) read(report func(isReady bool)) error {
	source := bufio.NewReaderSize(c.raw, linkReadBytes)
	last := byte(frameReady) // of the kinds that may come: it says first how it is
	for {
		got, err := readFrame(source, frameReady, last)
		if err != nil {
			return err
		}
		if got.kind != frameReady {
			c.deliver(got)
			continue
		}
		isReady, err := readyOf(got.body)
		if err != nil {
			return err
		}
		report(isReady)
		releaseBody(got.body)
		last = frameFailure
	}
}

// deliver gives an answer to who waits for it.
func (c *linkConn) deliver(got frame) {
	c.lock.Lock()
	asked, waits := c.calls[got.id]
	delete(c.calls, got.id)
	c.lock.Unlock()
	if !waits { // no more
		releaseBody(got.body)
		return
	}
	asked.answered <- linkAnswer{frame: got}
}

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
	lost := unavailable("the backend went away with the request: " + why.Error())
	for id, asked := range c.calls {
		if id > c.written {
			asked.answered <- linkAnswer{err: errNeverLeft}
		} else {
			asked.answered <- linkAnswer{err: lost}
		}
	}
	clear(c.calls)
	c.queue = nil
}
