package link

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/order"
)

// read delivers answers until the connection is gone, and says why it is. It reports that there is a link,
// and
// each STATE.
func (c *conn) read(begin func(), report func(isReady bool)) error {
	greeting := &descriptors{Conn: c.raw}
	source := bufio.NewReaderSize(greeting, frame.MaxBytes)
	first, err := frame.Read(source)
	file, held := greeting.memory()
	if err == nil {
		err = c.meet(first, file, held)
		first.Body.Release()
	} else {
		_, _ = file.Close(), held.Close() // also of nil
	}
	if err != nil {
		return err
	}
	c.wasHeard.Store(true)
	begin()
	for {
		if source.Buffered() == 0 {
			order.Keep()
		}
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

// meet takes note of the server's HELLO, and maps the memory whose descriptors came with it.
func (c *conn) meet(first frame.Frame, file, held *os.File) error {
	said, err := frame.ReadHello(first)
	if err == nil && file != nil && said.Memory.RegionBytes > 0 {
		c.memory, _ = arena.Open(file, held, said.Memory.Region, said.Memory.RegionBytes) // without it all goes over the connection
	} else {
		_, _ = file.Close(), held.Close() // also of nil
	}
	if err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.limits = said.Limits
	c.peer = peerOf(said)
	if c.memory != nil { // from now on answers may lie there
		c.queue.words = frame.AppendFreed(c.queue.words, 0)
		notify(c.wake)
	}
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
	case frame.Freed:
		return c.takeBack(got)
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
	asked, waits := c.calls[got.ID]
	if !waits { // no more
		if got.Kind == frame.End && got.Has(frame.Placed) {
			c.tellRead(got.ID, 0)
		}
		got.Body.Release()
		return nil
	}
	c.deliverTo(asked, got)
	return nil
}

// takeBack takes blocks that the server has read; the lock is held.
func (c *conn) takeBack(got frame.Frame) error {
	offsets, err := frame.ReadFreed(got.Body.Data)
	got.Body.Release()
	if err == nil && c.memory == nil {
		err = errors.New("it frees memory, and shares none")
	}
	for _, each := range offsets {
		if err == nil {
			err = c.memory.Freed(each)
		}
	}
	return err
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
	case got.Has(frame.Placed):
		if err := c.takePlaced(asked, got, data); err != nil {
			c.tellRead(got.ID, 0)
			got.Body.Release()
			c.finish(asked, err)
			return
		}
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

// takePlaced takes an answer that lies in the server's memory, which it keeps until the answer is released.
func (c *conn) takePlaced(asked *call, got frame.Frame, data []byte) error {
	if c.memory == nil {
		return &ResetError{frame.ReasonBroken, "its answer is in memory, and it shares none"}
	}
	parts, err := frame.ReadParts(data)
	if err != nil {
		return &ResetError{frame.ReasonBroken, err.Error()}
	}
	size, pieces := int64(0), make([][]byte, len(parts))
	for at, part := range parts {
		if pieces[at] = part.Bytes; part.Bytes == nil {
			if pieces[at], err = c.memory.View(part.Region, part.Offset, part.Size); err != nil {
				return &ResetError{frame.ReasonBroken, err.Error()}
			}
			size += int64(part.Size)
		}
	}
	if asked.budget != nil {
		if err := asked.budget.Need(size); err != nil {
			return err
		}
	}
	c.memory.Reads()
	asked.answer.Parts, asked.answer.owner, asked.answer.lease = pieces, got.Body, &lease{c, got.ID, size}
	return nil
}

// takeCredit lets a call send more; the lock is held.
func (c *conn) takeCredit(got frame.Frame) error {
	bytes, err := frame.ReadCredit(got.Body.Data)
	got.Body.Release()
	if err != nil {
		return err
	}
	if asked, waits := c.calls[got.ID]; waits {
		asked.credit += bytes
		c.queue.add(asked)
	}
	notify(c.wake)
	return nil
}

// giveBack lets the server send so many bytes more of a call; the lock is held.
func (c *conn) giveBack(asked *call, bytes int64) {
	if bytes == 0 || asked.isOver {
		return
	}
	if asked.consumed += bytes; asked.consumed >= asked.most/2 {
		c.queue.words = frame.AppendCredit(c.queue.words, asked.id, asked.consumed)
		asked.window += asked.consumed
		asked.consumed = 0
		notify(c.wake)
	}
}

// leave records that the server takes no more calls; calls that it has not taken count as never sent. The
// lock is held.
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
