package balance

import (
	"container/list"
	"hash/fnv"
	"sync"
	"time"
)

// Of the sequences that are known.
const (
	mostSequences = 1 << 17
	sequenceIdle  = 10 * time.Minute // after which one is forgotten: servers do so sooner
)

// Sequences knows which member has each sequence. Where one begins is said by a hash, see Highest; that it
// stays there when
// members come or go is said here.
type Sequences[M comparable] struct {
	lock   sync.Mutex
	places map[string]*list.Element // of a place
	oldest *list.List               // the one that was used longest ago first
	counts map[M]int
}

type place[M comparable] struct {
	id     string
	member M
	used   time.Time
}

// NewSequences returns one that knows none.
func NewSequences[M comparable]() *Sequences[M] {
	return &Sequences[M]{places: map[string]*list.Element{}, oldest: list.New(), counts: map[M]int{}}
}

// Find returns who has a sequence.
func (s *Sequences[M]) Find(id string, now time.Time) (member M, isKnown bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.forgetOld(now)
	found, isKnown := s.places[id]
	if !isKnown {
		return member, false
	}
	known := found.Value.(*place[M])
	known.used = now
	s.oldest.MoveToBack(found)
	return known.member, true
}

// Put notes who has a sequence from now on.
func (s *Sequences[M]) Put(id string, member M, now time.Time) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if found, isKnown := s.places[id]; isKnown {
		s.drop(found)
	}
	if len(s.places) >= mostSequences {
		s.drop(s.oldest.Front())
	}
	s.places[id] = s.oldest.PushBack(&place[M]{id, member, now})
	s.counts[member]++
}

// Drop forgets a sequence that has ended.
func (s *Sequences[M]) Drop(id string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if found, isKnown := s.places[id]; isKnown {
		s.drop(found)
	}
}

// Count returns how many sequences somebody has.
func (s *Sequences[M]) Count(member M, now time.Time) int {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.forgetOld(now)
	return s.counts[member]
}

// forgetOld drops what was not used for long; the lock is held.
func (s *Sequences[M]) forgetOld(now time.Time) {
	for first := s.oldest.Front(); first != nil && now.Sub(first.Value.(*place[M]).used) > sequenceIdle; first = s.oldest.Front() {
		s.drop(first)
	}
}

// drop forgets one; the lock is held.
func (s *Sequences[M]) drop(found *list.Element) {
	known := s.oldest.Remove(found).(*place[M])
	delete(s.places, known.id)
	if s.counts[known.member]--; s.counts[known.member] == 0 {
		delete(s.counts, known.member)
	}
}

// Weight says how much a member with a name wants a sequence: the member with the highest weight gets it.
// When a member leaves, only its own sequences move, and several gateways agree without communication.
func Weight(name, id string) uint64 {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	_, _ = sum.Write([]byte{0})
	_, _ = sum.Write([]byte(id))
	return mix(sum.Sum64())
}

// mix spreads the bits of a number over all of it.
func mix(bits uint64) uint64 {
	bits ^= bits >> 33
	bits *= 0xff51afd7ed558ccd
	bits ^= bits >> 33
	bits *= 0xc4ceb9fe1a85ec53
	return bits ^ bits>>33
}
