package frame

import (
	"slices"
	"sync"

	"pipeline/gateway/internal/buffers"
)

// Buffer is the bytes of one frame, and is used again.
type Buffer struct{ Data []byte }

var pool = sync.Pool{New: func() any { return new(Buffer) }}

// NewBuffer returns one of so many bytes.
func NewBuffer(size int) *Buffer {
	b := pool.Get().(*Buffer)
	if b.Data == nil {
		b.Data = buffers.Get()
	}
	b.Data = slices.Grow(b.Data[:0], size)[:size]
	return b
}

// Release gives a buffer back, which nobody reads any more.
func (b *Buffer) Release() {
	if b != nil {
		pool.Put(b)
	}
}

// Detach gives a buffer back but for its bytes, which are the caller's.
func (b *Buffer) Detach() []byte {
	data := b.Data
	b.Data = nil
	pool.Put(b)
	return data
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
