// Package balance has the decisions of a load balancer that need no connection: which backend is ejected and
// for how long, how many requests may be sent again, and which backend has a sequence.
package balance

import "time"

// EjectionLimits say when a failing backend gets no requests for some time.
type EjectionLimits struct {
	Failures int           // in a row, that eject it; 0: never
	First    time.Duration // of an ejection
	Longest  time.Duration // as they grow
}

// calmTimes the longest ejection without another one, and the next is a first one again.
const calmTimes = 2

// Ejections are those of one backend. The zero value has none.
type Ejections struct {
	row   int // how many there were without a calm between
	until time.Time
}

// Next returns how long a backend is ejected that has failed once too often: each time in a row twice as
// long as the
// last, up to the longest.
func (e *Ejections) Next(limits EjectionLimits, now time.Time) time.Duration {
	if !e.until.IsZero() && now.Sub(e.until) > calmTimes*limits.Longest {
		e.row = 0
	}
	wait := limits.First
	for range e.row {
		if wait >= limits.Longest {
			break
		}
		wait *= 2
	}
	wait = min(wait, limits.Longest)
	e.row++
	e.until = now.Add(wait)
	return wait
}

// MayEject says whether one more backend of so many may be ejected: at most half of them are. The others
// would get all of their requests, and a failure of all is not an outlier.
func MayEject(ejected, all int) bool { return 2*(ejected+1) <= all }
