package link

import (
	"container/list"
	"slices"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/link/frame"
)

const (
	batchBytes  = 128 << 10 // are written in one go, or a little more
	batchFrames = 256
)

// linkMessage is one to the server: a request, or a word without a body.
type linkMessage struct {
	kind  byte
	id    uint64
	data  []byte // room for a head, and the body; of a message that has begun, what is left of it
	place *list.Element
	begun bool // some of it is, or may be, on its way
}

// linkQueue is what is to be written. Messages are cut to pieces, of which each has its turn; new ones come
// first, so that a small one waits for no large one.
type linkQueue struct {
	fresh, begun list.List // of *linkMessage
}

func (q *linkQueue) isEmpty() bool { return q.fresh.Len()+q.begun.Len() == 0 }

func (q *linkQueue) add(message *linkMessage) { message.place = q.fresh.PushBack(message) }

// drop takes out a message, or what is left of it.
func (q *linkQueue) drop(message *linkMessage) {
	if message.place == nil {
		return
	}
	if message.begun {
		q.begun.Remove(message.place)
	} else {
		q.fresh.Remove(message.place)
	}
	message.place, message.data = nil, nil
}

// linkBatch is what is written in one go.
type linkBatch struct {
	vector [][]byte
	heads  []byte   // those of the vector's pieces that have no room for one
	done   [][]byte // to be released when it is written
	bytes  int
}

func newLinkBatch() *linkBatch {
	return &linkBatch{heads: make([]byte, 0, (batchFrames+2)*frame.HeadBytes)}
}

// take moves what is to be written next into an empty batch.
func (q *linkQueue) take(batch *linkBatch) {
	*batch = linkBatch{vector: batch.vector[:0], heads: batch.heads[:0], done: batch.done[:0]}
	for q.fresh.Len() > 0 && batch.hasRoom() {
		message := q.fresh.Remove(q.fresh.Front()).(*linkMessage)
		message.place = nil
		if !batch.addWhole(message) {
			message.begun = true
			message.data = message.data[frame.HeadBytes:]
			q.addPiece(batch, message)
		}
	}
	for isFirst := true; q.begun.Len() > 0 && (isFirst || batch.hasRoom()); isFirst = false {
		message := q.begun.Remove(q.begun.Front()).(*linkMessage)
		message.place = nil
		q.addPiece(batch, message)
	}
}

// sent lets go of what is written: who waits for more to write keeps no large message alive.
func (b *linkBatch) sent() {
	buffers.ReleaseAll(b.done)
	clear(b.vector)
	clear(b.done)
}

func (b *linkBatch) hasRoom() bool { return b.bytes < batchBytes && len(b.vector) < batchFrames }

// addWhole adds a message that needs no cutting.
func (b *linkBatch) addWhole(message *linkMessage) bool {
	if len(message.data) > frame.HeadBytes+frame.MostPieceBytes {
		return false
	}
	message.begun = true
	frame.AppendHead(message.data[:0], len(message.data)-frame.HeadBytes, message.kind, message.id)
	b.vector = append(b.vector, message.data)
	b.done = append(b.done, message.data)
	b.bytes += len(message.data)
	message.data = nil
	return true
}

// addPiece adds the next piece of a message that has begun, and gives it another turn if more is left.
func (q *linkQueue) addPiece(batch *linkBatch, message *linkMessage) {
	piece, kind := message.data, message.kind
	if len(piece) > frame.MostPieceBytes {
		piece, kind = piece[:frame.MostPieceBytes], frame.More
		message.data = message.data[frame.MostPieceBytes:]
		message.place = q.begun.PushBack(message)
	} else {
		message.data = nil
	}
	start := len(batch.heads)
	batch.heads = frame.AppendHead(batch.heads, len(piece), kind, message.id)
	batch.vector = append(batch.vector, batch.heads[start:], piece)
	batch.bytes += len(piece)
}

// word is a message without a body.
func word(kind byte, id uint64) *linkMessage {
	data := slices.Grow(buffers.Get(), frame.HeadBytes)
	return &linkMessage{kind: kind, id: id, data: data[:frame.HeadBytes]}
}
