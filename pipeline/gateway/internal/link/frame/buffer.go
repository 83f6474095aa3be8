package frame

import (
	"slices"
	"sync"
)

// Buffer is the bytes of one frame, and is used again.
type Buffer struct{ Data []byte }

var buffers = sync.Pool{New: func() any { return new(Buffer) }}

func NewBuffer(size int) *Buffer {
	b := buffers.Get().(*Buffer)
	b.Data = slices.Grow(b.Data[:0], size)[:size]
	return b
}

// Release gives a Buffer back, which nobody reads any more.
func (b *Buffer) Release() {
	if b != nil && cap(b.Data) <= 2*MaxBytes {
		buffers.Put(b)
	}
}

// Joined returns the bytes of all buffers, and releases them.
func Joined(pieces []*Buffer) []byte {
	size := 0
	for _, piece := range pieces {
		size += len(piece.Data)
	}
	whole := make([]byte, 0, size)
	for _, piece := range pieces {
		whole = append(whole, piece.Data...)
		piece.Release()
	}
	return whole
}

// ReleaseAll gives several back.
func ReleaseAll(pieces []*Buffer) {
	for _, piece := range pieces {
		piece.Release()
	}
}
