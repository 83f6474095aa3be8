// Package fair shares places among callers: the caller with the fewest places is next.
package fair

import "time"

// Outcome is what becomes of who asks for a place.
type Outcome int

// A place is had, or has been refused: the queue was full, and its caller the one with most of it.
const (
	In Outcome = iota
	Refused
)

// Window is for how long, up to twice, a caller is remembered for the places that it had.
const Window = 500 * time.Millisecond

// Queue admits a limited number at once; others wait. A free place goes to the caller that has the fewest,
// and of several to the one that has waited longest: that is max-min fairness. No caller gets less because
// another one asks for more.
//
// A caller that is answered asks again a moment later. If one of a thousand waiting callers took its place
// meanwhile, it would wait for the next place each time. So a caller's recent places, up to its share, are
// held for it while callers that have more wait. It has no clock and no locks: its methods are called one at
// a time, with times that do not go back.
type Queue[K comparable] struct {
	places  int // that there are
	most    int // that may wait
	inside  int
	waiting int
	number  uint64 // of the next ticket
	callers map[K]*caller[K]
	sweepAt int // so many callers are searched for ones that have left
}

// caller is somebody who is inside, waits, or was here of late.
type caller[K comparable] struct {
	inside int
	queue  []*Ticket[K] // who came first is first
	window time.Duration
	peaks  [2]int // most inside, in this window and the one before
}

// Ticket is one who waits, or waited.
type Ticket[K comparable] struct {
	key    K
	number uint64
	told   func(Outcome)
}

const leastSweep = 64

// New returns a queue for so many places, and so many who wait.
func New[K comparable](places, most int) *Queue[K] {
	return &Queue[K]{places: places, most: most, callers: map[K]*caller[K]{}, sweepAt: leastSweep}
}

// Ask asks for a place. `told` is called once, now or later, unless GiveUp comes first.
func (q *Queue[K]) Ask(now time.Duration, key K, told func(Outcome)) *Ticket[K] {
	q.number++
	ticket := &Ticket[K]{key, q.number, told}
	from := q.callers[key]
	if from == nil {
		q.sweep(now)
		from = &caller[K]{}
		q.callers[key] = from
	}
	if q.waiting == 0 && q.inside < q.places {
		q.admit(now, from)
		told(In)
		return ticket
	}
	from.queue = append(from.queue, ticket)
	q.waiting++
	q.Fill(now)
	if q.waiting > q.most {
		q.refuseOne()
	}
	return ticket
}

// Done gives back a place that was had.
func (q *Queue[K]) Done(now time.Duration, key K) {
	from := q.callers[key]
	from.demand(now)
	from.inside--
	q.inside--
	if q.waiting > 0 {
		q.Fill(now)
	}
}

// GiveUp takes a ticket out of the queue; false: it was answered already.
func (q *Queue[K]) GiveUp(ticket *Ticket[K]) bool {
	from := q.callers[ticket.key]
	if from == nil {
		return false
	}
	for at, each := range from.queue {
		if each == ticket {
			from.queue = append(from.queue[:at:at], from.queue[at+1:]...)
			q.waiting--
			return true
		}
	}
	return false
}

// Waiting returns how many wait.
func (q *Queue[K]) Waiting() int { return q.waiting }

// Holds says whether places are free though somebody waits: then Fill is to be called again within a window.
func (q *Queue[K]) Holds() bool { return q.waiting > 0 && q.inside < q.places }

// Fill gives free places to waiting callers, except places that are held for others.
func (q *Queue[K]) Fill(now time.Duration) {
	for q.waiting > 0 && q.inside < q.places {
		of := q.next(now)
		if of == nil {
			return
		}
		ticket := of.queue[0]
		of.queue = of.queue[1:]
		q.waiting--
		q.admit(now, of)
		ticket.told(In)
	}
}

func (q *Queue[K]) admit(now time.Duration, from *caller[K]) {
	q.inside++
	from.inside++
	from.demand(now)
}

// next returns the caller that is to have the next place; nil: what is free is held.
func (q *Queue[K]) next(now time.Duration) (found *caller[K]) {
	active := 0
	for _, each := range q.callers {
		if each.demand(now) > 0 || len(each.queue) > 0 {
			active++
		}
	}
	share, held := q.places/max(1, active), 0
	for _, each := range q.callers {
		held += each.held(share)
	}
	for _, each := range q.callers {
		if len(each.queue) == 0 || q.inside+held-each.held(share) >= q.places {
			continue
		}
		if found == nil || each.inside < found.inside || each.inside == found.inside && each.queue[0].number < found.queue[0].number {
			found = each
		}
	}
	return found
}

// demand returns the most places that the caller had recently, including its present ones.
func (c *caller[K]) demand(now time.Duration) int {
	if passed := now/Window - c.window; passed == 1 {
		c.peaks = [2]int{0, c.peaks[0]}
	} else if passed > 1 {
		c.peaks = [2]int{}
	}
	c.window = now / Window
	c.peaks[0] = max(c.peaks[0], c.inside)
	return max(c.peaks[0], c.peaks[1])
}

// held returns how many places are kept free for the caller, whose demand is up to date.
func (c *caller[K]) held(share int) int {
	return max(0, min(share, max(c.peaks[0], c.peaks[1]))-c.inside)
}

// refuseOne refuses the last one of the caller with most of the queue.
func (q *Queue[K]) refuseOne() {
	var last *Ticket[K]
	var of *caller[K]
	for _, each := range q.callers {
		count := len(each.queue)
		if count == 0 {
			continue
		}
		if of == nil || count > len(of.queue) || count == len(of.queue) && each.queue[count-1].number > last.number {
			last, of = each.queue[count-1], each
		}
	}
	of.queue = of.queue[:len(of.queue)-1]
	q.waiting--
	last.told(Refused)
}

// sweep forgets callers that have not been here of late, when there are many.
func (q *Queue[K]) sweep(now time.Duration) {
	if len(q.callers) < q.sweepAt {
		return
	}
	for key, each := range q.callers {
		if each.demand(now) == 0 && len(each.queue) == 0 {
			delete(q.callers, key)
		}
	}
	q.sweepAt = max(leastSweep, 2*len(q.callers))
}
