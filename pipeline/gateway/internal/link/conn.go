package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/link/frame"
)

// conn is one connection. Whoever asks puts a call into the queue; one goroutine writes what is there, another
// one reads the answers, and a third one looks whether anything comes.
type conn struct {
	raw  net.Conn
	wake chan struct{} // something was queued
	gone chan struct{} // closed when the connection is
	peer Peer          // known when calls are begun

	wasHeard atomic.Bool // since the last look

	lock     sync.Mutex
	lastID   uint64
	queue    queue
	calls    map[uint64]*call
	limits   frame.Limits
	window   int64 // bytes of DATA that we take
	consumed int64 // of those that came, and are not given back yet
	inFlight int   // at the server, as it says
	isLeft   bool  // the server takes no calls any more
	failure  error // not nil: it is closed
}

func newConn(raw net.Conn) *conn {
	return &conn{
		raw:    raw,
		wake:   make(chan struct{}, 1),
		gone:   make(chan struct{}),
		calls:  map[uint64]*call{},
		window: frame.ConnCredit,
	}
}

// What callers do ----------------------------------------------------------------------------

// begin queues a call. Its error is ErrNeverLeft.
func (c *conn) begin(asked *call) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil || c.isLeft || c.limits.Calls > 0 && len(c.calls) >= c.limits.Calls {
		return ErrNeverLeft
	}
	c.lastID++
	asked.id = c.lastID
	asked.credit, asked.window = c.limits.CallCredit, frame.CallCredit
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
		if len(asked.messages) == 0 { // what has begun to come may go on
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

// forget drops a call whose caller does not wait, and tells the server of one that it has seen; false: it is over.
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

// drop ends a call that is in flight; the lock is held.
func (c *conn) drop(asked *call, reason Reason) {
	if asked.isOpen {
		c.queue.words = frame.AppendReset(c.queue.words, asked.id, reason, "")
		notify(c.wake)
	}
	c.remove(asked)
	c.dropAnswers(asked)
}

// remove takes a call out of all that knows it; the lock is held.
func (c *conn) remove(asked *call) {
	asked.isOver = true
	delete(c.calls, asked.id)
	hadMore := asked.hasMore()
	c.queue.drop(asked)
	if hadMore && asked.sent != nil {
		asked.hasMessage = true // who sends is told that it never left
		notify(asked.sent)
	}
}

// dropAnswers gives back what nobody is going to take; the lock is held.
func (c *conn) dropAnswers(asked *call) {
	frame.ReleaseAll(asked.pieces)
	asked.pieces = asked.pieces[:0]
	for _, each := range asked.messages {
		c.giveBack(nil, each.owed)
	}
	c.giveBack(nil, asked.owed)
	asked.messages, asked.owed = nil, 0
}

// finish ends a call with what its caller is told; the lock is held.
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

// What is written ----------------------------------------------------------------------------

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
	return c.queue.fill(batch)
}

// What is read -------------------------------------------------------------------------------

// read delivers answers until the connection is gone, and says why it is. It reports that there is a link, and
// each STATE.
func (c *conn) read(begin func(), report func(isReady bool)) error {
	source := bufio.NewReaderSize(c.raw, frame.MaxBytes)
	first, err := frame.Read(source)
	if err != nil {
		return err
	}
	err = c.meet(first)
	first.Body.Release()
	if err != nil {
		return err
	}
	c.wasHeard.Store(true)
	begin()
	for {
		got, err := frame.Read(source)
		if err != nil {
			return err
		}
		c.wasHeard.Store(true)
		if got.Kind == frame.State {
			isReady, inFlight, err := frame.ReadState(got.Body.Data)
			if err != nil {
				return err
			}
			c.lock.Lock()
			c.inFlight = inFlight
			c.lock.Unlock()
			report(isReady)
			got.Body.Release()
			continue
		}
		if err := c.deliver(got); err != nil {
			return err
		}
		if got.Kind == frame.Goaway {
			report(false)
		}
	}
}

// meet takes note of the server's HELLO.
func (c *conn) meet(first frame.Frame) error {
	said, err := frame.ReadHello(first)
	if err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.limits = said.Limits
	c.queue.credit = said.Limits.ConnCredit
	c.peer = peerOf(said)
	return nil
}

// deliver takes a frame of any other kind. Its error is a breach that ends the connection.
func (c *conn) deliver(got frame.Frame) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	switch got.Kind {
	case frame.Pong:
		got.Body.Release()
		return nil
	case frame.Credit:
		return c.takeCredit(got)
	case frame.Goaway:
		return c.leave(got)
	case frame.Ping:
		c.queue.words = frame.Append(c.queue.words, frame.Pong, 0, got.ID, nil)
		notify(c.wake)
		got.Body.Release()
		return nil
	}
	if got.Kind < frame.Headers || got.Kind > frame.Reset {
		return fmt.Errorf("it sent a frame of kind %d in the midst", got.Kind)
	}
	if got.ID > c.lastID {
		return fmt.Errorf("it answers %d, which was never asked", got.ID)
	}
	if got.Kind == frame.Data {
		if c.window -= int64(len(got.Body.Data)); c.window < 0 {
			return errors.New("it sent more than there was credit for")
		}
	}
	asked, waits := c.calls[got.ID]
	if !waits { // no more
		if got.Kind == frame.Data {
			c.giveBack(nil, int64(len(got.Body.Data)))
		}
		got.Body.Release()
		return nil
	}
	c.deliverTo(asked, got)
	return nil
}

func (c *conn) deliverTo(asked *call, got frame.Frame) {
	switch got.Kind {
	case frame.Headers:
		asked.answer.Headers = append(Fields(nil), got.Body.Data...)
		got.Body.Release()
		if asked.isStream {
			notify(asked.wake)
		}
	case frame.Data:
		c.takeData(asked, got)
	case frame.End:
		c.takeEnd(asked, got)
	case frame.Reset:
		reason, text := frame.ReadReset(got.Body.Data)
		got.Body.Release()
		c.finish(asked, (&ResetError{reason, text}).asError())
	}
}

func (c *conn) takeData(asked *call, got frame.Frame) {
	size := int64(len(got.Body.Data))
	if asked.window -= size; asked.window < 0 {
		got.Body.Release()
		c.drop(asked, frame.ReasonOverrun)
		c.finish(asked, &ResetError{frame.ReasonOverrun, "it sent more than there was credit for"})
		return
	}
	asked.pieces = append(asked.pieces, got.Body)
	if !asked.isStream || len(asked.messages) == 0 && got.Has(frame.More) {
		c.giveBack(asked, size)
	} else {
		asked.owed += size
	}
	if asked.budget != nil {
		if err := asked.budget.Need(size); err != nil {
			c.drop(asked, frame.ReasonCanceled)
			c.finish(asked, err)
			return
		}
	}
	if asked.isStream && got.Has(frame.Message) && !got.Has(frame.More) {
		asked.messages = append(asked.messages, message{frame.Joined(asked.pieces), asked.owed})
		asked.pieces, asked.owed = asked.pieces[:0], 0
		notify(asked.wake)
	}
}

func (c *conn) takeEnd(asked *call, got frame.Frame) {
	end, data, err := frame.ReadEnd(got.Body.Data)
	if err != nil {
		got.Body.Release()
		c.finish(asked, &ResetError{frame.ReasonBroken, err.Error()})
		return
	}
	asked.answer = Answer{End: End{end, asked.answer.Headers}}
	switch {
	case asked.isStream:
		if got.Has(frame.Message) {
			asked.messages = append(asked.messages, message{data: append([]byte(nil), data...)})
		}
		got.Body.Release()
	case len(asked.pieces) == 0:
		asked.answer.Data, asked.answer.owner = data, got.Body
	default: // it came in DATA
		got.Body.Release()
		asked.answer.Data = frame.Joined(asked.pieces)
		clear(asked.pieces)
		asked.pieces = asked.pieces[:0]
	}
	c.finish(asked, nil)
}

// takeCredit lets a call, or the connection, send more; the lock is held.
func (c *conn) takeCredit(got frame.Frame) error {
	bytes, err := frame.ReadCredit(got.Body.Data)
	got.Body.Release()
	if err != nil {
		return err
	}
	if got.ID == 0 {
		c.queue.credit += bytes
	} else if asked, waits := c.calls[got.ID]; waits {
		asked.credit += bytes
		c.queue.add(asked)
	}
	notify(c.wake)
	return nil
}

// giveBack lets the server send so many bytes more, of a call if it is not nil; the lock is held.
func (c *conn) giveBack(asked *call, bytes int64) {
	if bytes == 0 {
		return
	}
	if c.consumed += bytes; c.consumed >= frame.ConnCredit/2 {
		c.queue.words = frame.AppendCredit(c.queue.words, 0, c.consumed)
		c.window += c.consumed
		c.consumed = 0
		notify(c.wake)
	}
	if asked == nil || asked.isOver {
		return
	}
	if asked.consumed += bytes; asked.consumed >= frame.CallCredit/2 {
		c.queue.words = frame.AppendCredit(c.queue.words, asked.id, asked.consumed)
		asked.window += asked.consumed
		asked.consumed = 0
		notify(c.wake)
	}
}

// leave takes note that the server takes no calls any more; those that it has not taken never left. The lock is held.
func (c *conn) leave(got frame.Frame) error {
	last, _, err := frame.ReadGoaway(got.Body.Data)
	got.Body.Release()
	if err != nil {
		return err
	}
	c.isLeft = true
	for id, asked := range c.calls {
		if id > last {
			c.finish(asked, ErrNeverLeft)
		}
	}
	return nil
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

// close ends the connection. Those who wait are told, and who may be asked again.
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
}
