package link

import (
	"slices"
	"sync"
)

// buffer is the bytes of one frame, and is used again.
type buffer struct{ data []byte }

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func newBuffer(size int) *buffer {
	b := buffers.Get().(*buffer)
	b.data = slices.Grow(b.data[:0], size)[:size]
	return b
}

// release gives a buffer back, which nobody reads any more.
func (b *buffer) release() {
	if b != nil && cap(b.data) <= 2*payloadBytes {
		buffers.Put(b)
	}
}

// joined returns the bytes of all buffers, and releases them.
func joined(pieces []*buffer) []byte {
	size := 0
	for _, piece := range pieces {
		size += len(piece.data)
	}
	whole := make([]byte, 0, size)
	for _, piece := range pieces {
		whole = append(whole, piece.data...)
		piece.release()
	}
	return whole
}

func releaseAll(pieces []*buffer) {
	for _, piece := range pieces {
		piece.release()
	}
}
