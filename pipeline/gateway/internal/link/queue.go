package link

import (
	"time"

	"pipeline/gateway/internal/link/frame"
)

// batchBytes are written at once, or up to one frame more.
const batchBytes = 128 << 10

// queue is what is to be written. Long messages are cut to pieces, of which each has its turn; new calls come
// first, so that a small one waits for no large one.
type queue struct {
	words []byte // frames of a few bytes, copied
	fresh turns  // calls that have not been opened
	begun turns  // calls with more to say
}

// add has a call written that has something to say.
func (q *queue) add(each *call) {
	switch {
	case each.in != nil:
	case !each.isOpen:
		q.fresh.push(each)
	case each.hasMore():
		q.begun.push(each)
	}
}

// drop takes a call out, with its frames.
func (q *queue) drop(each *call) {
	if each.in != nil {
		each.in.remove(each)
	}
	each.message, each.hasMessage, each.endsSending = nil, false, false
}

// fill appends what is to be written next to an empty batch. Messages are copied: nothing of a caller's is
// read
// when the call has returned.
func (q *queue) fill(batch []byte) []byte {
	batch = append(batch, q.words...)
	q.words = q.words[:0]
	if q.fresh.first != nil {
		now := time.Now()
		for q.fresh.first != nil && len(batch) < batchBytes {
			batch = q.open(batch, q.fresh.pop(), now)
		}
	}
	for isFirst := true; q.begun.first != nil && (isFirst || len(batch) < batchBytes); isFirst = false {
		batch = q.goOn(batch, q.begun.pop())
	}
	return batch
}

// open adds the first frame of a call.
func (q *queue) open(batch []byte, each *call, now time.Time) []byte {
	each.isOpen = true
	if each.block != nil {
		each.block.Told()
	}
	batch, each.message = frame.AppendOpen(batch, each.flags(), each.method, each.id, &each.opened, now, each.message)
	q.wrote(each)
	return batch
}

// goOn adds the next frame of a call that is open. Without credit it waits until it gets some.
func (q *queue) goOn(batch []byte, each *call) []byte {
	piece := each.message
	if most := min(frame.MaxBytes, each.credit); int64(len(piece)) > most {
		if most <= 0 {
			return batch
		}
		piece = piece[:most]
	}
	flags := each.flags()
	if len(piece) < len(each.message) {
		flags = flags&^frame.Last | frame.More
	}
	batch = frame.Append(batch, frame.Data, flags, each.id, piece)
	each.message = each.message[len(piece):]
	each.credit -= int64(len(piece))
	q.wrote(each)
	return batch
}

// wrote gives a call another turn if more of its message is left.
func (q *queue) wrote(each *call) {
	if len(each.message) > 0 {
		q.begun.push(each)
		return
	}
	if each.hasMessage && each.sent != nil {
		notify(each.sent)
	}
	each.message, each.hasMessage = nil, false
	each.hasEnded = each.hasEnded || each.endsSending
	each.endsSending = false
}

// turns is a queue of calls; each is in one at most.
type turns struct{ first, last *call }

func (t *turns) push(each *call) {
	each.in, each.before, each.behind = t, t.last, nil
	if t.last == nil {
		t.first = each
	} else {
		t.last.behind = each
	}
	t.last = each
}

func (t *turns) pop() *call {
	each := t.first
	t.remove(each)
	return each
}

func (t *turns) remove(each *call) {
	if each.before == nil {
		t.first = each.behind
	} else {
		each.before.behind = each.behind
	}
	if each.behind == nil {
		t.last = each.before
	} else {
		each.behind.before = each.before
	}
	each.in, each.before, each.behind = nil, nil, nil
}

// notify wakes who waits, once.
func notify(waiting chan<- struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}
