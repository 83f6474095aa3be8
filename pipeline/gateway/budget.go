package main

import (
	"net/http"
	"sync"
	"sync/atomic"
)

// budget bounds the bytes of requests and answers that the gateway holds, all of them together. What is
// counted is roughly what is held: bodies, what they become, and answers until they are taken.
type budget struct {
	limit int64
	held  atomic.Int64
}

// requestBytes is what a request takes at least: goroutines, buffers and a backend's connection.
const requestBytes = 32 << 10

func newBudget(limit int64) *budget { return &budget{limit: limit} }

// share is what one exchange holds of a budget. Nothing is held by it any more after `end`.
type share struct {
	of *budget

	lock     sync.Mutex
	size     int64
	hasEnded bool
}

// need adds bytes, if there is room for them. Its error is a *refusal.
func (s *share) need(bytes int64) error {
	if bytes > s.of.limit {
		return tooHeavy(bytes, s.of.limit)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.hasEnded {
		return nil // what it is for is on its way out
	}
	now := s.of.held.Add(bytes)
	if now > s.of.limit {
		s.of.held.Add(-bytes)
		return noRoom()
	}
	s.size += bytes
	return nil
}

// give gives bytes back, as far as they are held.
func (s *share) give(bytes int64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	bytes = min(bytes, s.size)
	s.size -= bytes
	s.of.held.Add(-bytes)
}

// keep gives everything back but so many bytes.
func (s *share) keep(bytes int64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if bytes < s.size {
		s.of.held.Add(bytes - s.size)
		s.size = bytes
	}
}

// end gives everything back, for good.
func (s *share) end() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.of.held.Add(-s.size)
	s.size, s.hasEnded = 0, true
}

// noRoom answers who comes when the budget is used up by others.
func noRoom() *refusal {
	return &refusal{
		status: http.StatusServiceUnavailable, code: codeOverloaded, retryAfter: 1,
		text: "the gateway holds as many requests and answers as it has memory for (--max-buffered-bytes); try again",
	}
}
