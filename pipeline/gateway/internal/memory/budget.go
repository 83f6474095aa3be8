package memory

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"pipeline/gateway/internal/failure"
)

// Budget bounds the bytes of requests and answers that the gateway holds, all of them together. What is
// counted is roughly what is held: bodies, what they become, and answers until they are taken.
type Budget struct {
	Limit int64
	Held  atomic.Int64
}

// RequestBytes is what a request takes at least: goroutines, buffers and a backend's connection.
const RequestBytes = 32 << 10

func NewBudget(limit int64) *Budget { return &Budget{Limit: limit} }

// Share is what one exchange holds of a budget. Nothing is held by it any more after `end`.
type Share struct {
	Of *Budget

	lock     sync.Mutex
	Size     int64
	hasEnded bool
}

// Need adds bytes, if there is room for them. Its error is a *failure.Error.
func (s *Share) Need(bytes int64) error {
	if bytes > s.Of.Limit {
		return tooHeavy(bytes, s.Of.Limit)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.hasEnded {
		return nil // what it is for is on its way out
	}
	now := s.Of.Held.Add(bytes)
	if now > s.Of.Limit {
		s.Of.Held.Add(-bytes)
		return noRoom()
	}
	s.Size += bytes
	return nil
}

// give gives bytes back, as far as they are held.
func (s *Share) give(bytes int64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	bytes = min(bytes, s.Size)
	s.Size -= bytes
	s.Of.Held.Add(-bytes)
}

// Keep gives everything back but so many bytes.
func (s *Share) Keep(bytes int64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if bytes < s.Size {
		s.Of.Held.Add(bytes - s.Size)
		s.Size = bytes
	}
}

// End gives everything back, for good.
func (s *Share) End() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.Of.Held.Add(-s.Size)
	s.Size, s.hasEnded = 0, true
}

// noRoom answers who comes when the budget is used up by others.
func noRoom() *failure.Error {
	return &failure.Error{
		Status: http.StatusServiceUnavailable, ErrNo: failure.CodeOverloaded, RetryAfter: 1,
		Text: "the gateway holds as many requests and answers as it has memory for (--max-buffered-bytes); try again",
	}
}

// tooHeavy answers a request that there will never be room for.
func tooHeavy(bytes, limit int64) *failure.Error {
	text := fmt.Sprintf("the request takes about %d bytes of memory, and the gateway has %d (--max-buffered-bytes)", bytes, limit)
	return &failure.Error{Status: http.StatusRequestEntityTooLarge, ErrNo: failure.CodePackage, Text: text}
}
