// Package procs limits the processors of Go to the number that the load needs: a request that wakes threads
// on other processors at each step takes twice as long.
package procs

import (
	"context"
	"os"
	"runtime"
	"time"
)

const (
	lookEvery = 100 * time.Millisecond
	busy      = 0.75 // of what there is: one more is of use
	idle      = 0.5  // of what there would be with one less: that is enough
)

// Follow begins with one processor, and adds or takes away one at a time as there is work, until ctx ends. It leaves
// alone what GOMAXPROCS in the environment says.
func Follow(ctx context.Context) {
	most := runtime.NumCPU()
	if os.Getenv("GOMAXPROCS") != "" || most == 1 {
		return
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	follow(ctx, most, ticker.C, usage, func(number int) { runtime.GOMAXPROCS(number) })
}

func follow(ctx context.Context, most int, ticks <-chan time.Time, usage func() time.Duration, set func(int)) {
	now := 1
	set(now)
	used, at := usage(), time.Now()
	for {
		var tick time.Time
		select {
		case tick = <-ticks:
		case <-ctx.Done():
			return
		}
		usedNow := usage()
		next := wanted(now, most, float64(usedNow-used)/float64(tick.Sub(at)))
		used, at = usedNow, tick
		if next != now {
			now = next
			set(now)
		}
	}
}

// wanted returns how many processors there should be, of which so many were used in the mean.
func wanted(now, most int, used float64) int {
	switch {
	case used > busy*float64(now) && now < most:
		return now + 1
	case used < idle*float64(now-1):
		return now - 1
	}
	return now
}
