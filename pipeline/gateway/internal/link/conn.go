package link

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/link/frame"
)

// mostRead bytes of the server's memory are kept from it until there is something else to say.
const mostRead = 4 << 20

// conn is one connection. Whoever asks puts a call into the queue; one goroutine writes what is there,
// another
// one reads the answers, and a third one looks whether anything comes.
type conn struct {
	raw  net.Conn
	wake chan struct{} // something was queued
	gone chan struct{} // closed when the connection is
	peer Peer          // known when calls are begun

	memory *arena.Memory // of the server, likewise; nil: it shares none

	wasHeard atomic.Bool // since the last look

	lock      sync.Mutex
	lastID    uint64
	queue     queue
	calls     map[uint64]*call
	limits    frame.Limits
	inFlight  int   // at the server, as it says
	isLeft    bool  // the server takes no calls any more
	readBytes int64 // bytes of answers that are going to be acknowledged to the server
	failure   error // not nil: it is closed
}

func newConn(raw net.Conn) *conn {
	return &conn{
		raw:   raw,
		wake:  make(chan struct{}, 1),
		gone:  make(chan struct{}),
		calls: map[uint64]*call{},
	}
}

// For callers ----------------------------------------------------------------------------

// begin queues a call. Its error is ErrNeverLeft.
func (c *conn) begin(asked *call) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil || c.isLeft || c.limits.Calls > 0 && len(c.calls) >= c.limits.Calls {
		return ErrNeverLeft
	}
	c.lastID++
	asked.id = c.lastID
	asked.credit, asked.most = c.limits.CallCredit, frame.CallCredit
	if asked.isStream {
		asked.credit, asked.most = c.limits.StreamCredit, frame.StreamCredit
	}
	asked.window = asked.most
	c.calls[asked.id] = asked
	c.enqueue(asked)
	return nil
}

// say queues the next message of a stream, or its end; false: it has ended.
func (c *conn) say(asked *call, data []byte, isEnd bool) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if asked.isOver || asked.hasEnded || asked.endsSending {
		return false
	}
	if isEnd {
		asked.endsSending = true
	} else {
		asked.message, asked.hasMessage = data, true
	}
	c.enqueue(asked)
	return true
}

// next returns the next answer of a stream, or how it ended; false: it has to be waited for.
func (c *conn) next(asked *call) (data []byte, err error, isThere bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if len(asked.messages) > 0 {
		first := asked.messages[0]
		asked.messages = asked.messages[1:]
		owed := first.owed
		if len(asked.messages) == 0 { // an answer that has begun may continue
			owed += asked.owed
			asked.owed = 0
		}
		c.giveBack(asked, owed)
		return first.data, nil, true
	}
	if !asked.isOver {
		return nil, nil, false
	}
	if asked.err != nil {
		return nil, asked.err, true
	}
	return nil, io.EOF, true
}

func (c *conn) isOver(asked *call) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return asked.isOver && asked.hasMore()
}

// forget drops a call whose caller does not wait, and tells the server of one that it has seen; false: it is
// over.
func (c *conn) forget(asked *call) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if asked.isOver {
		c.dropAnswers(asked)
		return false
	}
	c.drop(asked, frame.ReasonCanceled)
	asked.err = context.Canceled
	if asked.isStream {
		notify(asked.wake)
	}
	return true
}

// hasRead has the server told, with the next frame, that the answer to a call is read.
func (c *conn) hasRead(id uint64, size int64) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.tellRead(id, size)
}

// tellRead is hasRead; the lock is held.
func (c *conn) tellRead(id uint64, size int64) {
	if c.failure != nil {
		return
	}
	c.queue.words = frame.AppendFreed(c.queue.words, id)
	if c.readBytes += size; c.readBytes >= mostRead {
		notify(c.wake)
	}
}

// drop ends a call that is in flight; the lock is held.
func (c *conn) drop(asked *call, reason Reason) {
	if asked.isOpen {
		c.queue.words = frame.AppendReset(c.queue.words, asked.id, reason, "")
		notify(c.wake)
	}
	c.remove(asked)
	c.dropAnswers(asked)
}

// remove takes a call out of all tables; the lock is held.
func (c *conn) remove(asked *call) {
	asked.isOver = true
	delete(c.calls, asked.id)
	hadMore := asked.hasMore()
	c.queue.drop(asked)
	if hadMore && asked.sent != nil {
		asked.hasMessage = true // the sender learns that it never left
		notify(asked.sent)
	}
}

// dropAnswers forgets what nobody is going to take; the lock is held.
func (c *conn) dropAnswers(asked *call) {
	frame.ReleaseAll(asked.pieces)
	asked.pieces = asked.pieces[:0]
	asked.messages, asked.owed = nil, 0
}

// finish ends a call with its caller's answer; the lock is held.
func (c *conn) finish(asked *call, err error) {
	asked.err = err
	c.remove(asked)
	if err != nil {
		frame.ReleaseAll(asked.pieces)
		asked.pieces = asked.pieces[:0]
	}
	notify(asked.wake) // from here on a unary one may be another connection's
}

// enqueue has a call written; the lock is held.
func (c *conn) enqueue(asked *call) {
	c.queue.add(asked)
	notify(c.wake)
}

// Writing ----------------------------------------------------------------------------

// write sends what is queued until the connection is gone.
func (c *conn) write() {
	batch := make([]byte, 0, batchBytes+2*frame.MaxBytes)
	for {
		select {
		case <-c.wake:
		case <-c.gone:
			return
		}
		runtime.Gosched() // who is about to ask comes along: one system call for all
		for batch = c.take(batch[:0]); len(batch) > 0; batch = c.take(batch[:0]) {
			if _, err := c.raw.Write(batch); err != nil {
				c.close(err)
				return
			}
		}
	}
}

// take fills a batch with what is next.
func (c *conn) take(batch []byte) []byte {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil {
		return batch
	}
	c.readBytes = 0
	return c.queue.fill(batch)
}

// Signs of life ------------------------------------------------------------------------------

var errSilent = errors.New("it has stopped answering")

// beat asks the server at every tick for a sign of life. It reports when there was none for some ticks, and
// when there is one again, and closes the connection when there was none for twice as many.
func (c *conn) beat(ticks <-chan time.Time, patience int, report func(isSilent bool)) {
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
			c.queue.words = frame.Append(c.queue.words, frame.Ping, 0, 0, nil)
			c.lock.Unlock()
			notify(c.wake)
		}
	}
}

// close ends the connection. Waiting callers are notified; their requests may be sent again.
func (c *conn) close(why error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil {
		return
	}
	c.failure = why
	close(c.gone)
	_ = c.raw.Close() // it fails only if it is closed
	lost := &LostError{why.Error()}
	for _, asked := range c.calls {
		if asked.isOpen {
			c.finish(asked, lost)
		} else {
			c.finish(asked, ErrNeverLeft)
		}
	}
	c.queue = queue{}
	c.memory.Close()
}
