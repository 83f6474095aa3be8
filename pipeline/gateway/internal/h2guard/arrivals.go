package h2guard

import (
	"context"
	"slices"
	"sync"
)

// Arrivals are the calls of a connection whose message is not passed on, by the order of their streams. A
// server answers each call in a goroutine of its own, so that calls overtake each other; a step of a sequence
// waits here for the steps before it.
type Arrivals struct {
	lock    sync.Mutex
	calls   []arrival
	last    uint32        // stream that has begun
	changed chan struct{} // nil: nobody waits
}

// arrival is a call.
type arrival struct {
	stream   uint32
	isWhole  bool   // it has said all, so that its message will be read without waiting
	sequence string // "": nobody has looked yet
}

// received notes a frame of the caller's.
func (a *Arrivals) received(frame seen) {
	a.lock.Lock()
	defer a.lock.Unlock()
	switch {
	case frame.kind == frameReset:
		a.remove(frame.stream)
		return
	case frame.kind == frameHeaders && frame.stream > a.last:
		a.last = frame.stream
		a.calls = append(a.calls, arrival{stream: frame.stream})
	case frame.kind != frameHeaders && frame.kind != frameData:
		return
	}
	if at, isThere := a.find(frame.stream); isThere && frame.flags&flagEnd != 0 {
		a.calls[at].isWhole = true
	}
}

// sent notes a frame of the server's: a call that it has ended is not waited for.
func (a *Arrivals) sent(frame seen) {
	isEnd := (frame.kind == frameHeaders || frame.kind == frameData) && frame.flags&flagEnd != 0
	if isEnd || frame.kind == frameReset {
		a.Pass(frame.stream)
	}
}

// Pass notes that the message of a call is passed on, or that its place does not matter.
func (a *Arrivals) Pass(stream uint32) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.remove(stream)
}

// Wait waits until it is the turn of a step of a sequence: until no call before it, whose message is there,
// can be a step of the same sequence. Pass follows. Its error is that of ctx.
func (a *Arrivals) Wait(ctx context.Context, stream uint32, sequence string) error {
	for {
		changed := a.isBehind(stream, sequence)
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isBehind notes the sequence of a call, and returns what is closed at the next change; nil: it is its turn.
func (a *Arrivals) isBehind(stream uint32, sequence string) <-chan struct{} {
	a.lock.Lock()
	defer a.lock.Unlock()
	at, isThere := a.find(stream)
	if isThere && a.calls[at].sequence == "" {
		a.calls[at].sequence = sequence
		a.tell()
	}
	if !slices.ContainsFunc(a.calls[:at], func(other arrival) bool {
		return other.isWhole && (other.sequence == "" || other.sequence == sequence)
	}) {
		return nil
	}
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

// remove takes a call out; the lock is held.
func (a *Arrivals) remove(stream uint32) {
	if at, isThere := a.find(stream); isThere {
		a.calls = slices.Delete(a.calls, at, at+1)
		a.tell()
	}
}

// tell wakes all who wait; the lock is held.
func (a *Arrivals) tell() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// find returns the place of a call; the lock is held.
func (a *Arrivals) find(stream uint32) (at int, isThere bool) {
	return slices.BinarySearchFunc(a.calls, stream, func(call arrival, stream uint32) int {
		return int(int64(call.stream) - int64(stream))
	})
}
