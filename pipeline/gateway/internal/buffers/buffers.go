// Package buffers reuses the buffers of small messages.
package buffers

import (
	"sync"
)

// Kept is the most that a buffer may have to be kept.
const Kept = 64 << 10

// pool keeps the buffers of small bodies for the next ones.
var pool = sync.Pool{New: func() any { return new([]byte) }}

// Release gives back a buffer that nobody reads any more.
func Release(body []byte) {
	if cap(body) > 0 && cap(body) <= Kept {
		body = body[:0]
		pool.Put(&body)
	}
}

// ReleaseAll gives back several.
func ReleaseAll(pieces [][]byte) {
	for _, piece := range pieces {
		Release(piece)
	}
}

// Get returns an empty buffer, with what room it has.
func Get() []byte { return *pool.Get().(*[]byte) }
