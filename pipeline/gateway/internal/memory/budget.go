package memory

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"pipeline/gateway/internal/failure"
)

// Budget bounds the bytes of requests and answers that the gateway holds, all of them together. It counts
// roughly what is held: bodies, their converted forms, and answers until they are taken.
type Budget struct {
	Limit int64
	Held  atomic.Int64
}

// RequestBytes is what a request takes at least: goroutines, buffers and a backend's connection.
const RequestBytes = 32 << 10

func NewBudget(limit int64) *Budget { return &Budget{Limit: limit} }

// Share is what one exchange holds of a budget. Nothing is held by it any more after `end`.
type Share struct {
	Of  *Budget
	Own *Budget // of its caller, besides; nil: none

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
	if !s.Own.take(bytes) {
		return noRoomOfItsOwn(bytes, s.Own.Limit)
	}
	if !s.Of.take(bytes) {
		s.Own.add(-bytes)
		return noRoom()
	}
	s.Size += bytes
	return nil
}

// take adds bytes, if there is room for them.
func (b *Budget) take(bytes int64) bool {
	if b == nil {
		return true
	}
	if b.Held.Add(bytes) > b.Limit {
		b.Held.Add(-bytes)
		return false
	}
	return true
}

func (b *Budget) add(bytes int64) {
	if b != nil {
		b.Held.Add(bytes)
	}
}

// add adds bytes that are there in any case.
func (s *Share) add(bytes int64) {
	s.Size += bytes
	s.Of.add(bytes)
	s.Own.add(bytes)
}

// give gives bytes back, as far as they are held.
func (s *Share) give(bytes int64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.add(-min(bytes, s.Size))
}

// Keep gives everything back but so many bytes.
func (s *Share) Keep(bytes int64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if bytes < s.Size {
		s.add(bytes - s.Size)
	}
}

// End gives everything back, permanently.
func (s *Share) End() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.add(-s.Size)
	s.hasEnded = true
}

// noRoomOfItsOwn answers a caller that has used up its own part.
func noRoomOfItsOwn(bytes, limit int64) *failure.Error {
	if bytes > limit {
		text := fmt.Sprintf("the request takes about %d bytes of memory, and its caller has %d (buffered_bytes)", bytes, limit)
		return &failure.Error{Status: http.StatusRequestEntityTooLarge, ErrNo: failure.CodePackage, Text: text}
	}
	return &failure.Error{
		Status: http.StatusTooManyRequests, ErrNo: failure.CodeLimited, RetryAfter: 1,
		Text: fmt.Sprintf("the caller's requests and answers hold all of the %d bytes that it has (buffered_bytes); try again", limit),
	}
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
