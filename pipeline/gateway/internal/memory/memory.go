// Package memory limits the gateway's memory, and sets the garbage collector's limit.
package memory

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"pipeline/gateway/internal/clock"
)

const (
	gcPercent      = 150 // of a small heap: it trades memory for time; with 400 it has 9 MiB more, and no time less that can be seen
	gcPercentLarge = 100
	largeHeapBytes = 12 << 20

	ownBytes   = 64 << 20 // beside what is counted
	sweepEvery = 5 * time.Second
)

// Tune says to the collector what it may take, unless the environment does: for a budget, its garbage
// and ourselves, and less than the control group allows.
func Tune(budget, allowed int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryFor(budget, allowed))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		watchCollections(gcPercent)
	}
}

func memoryFor(budget, allowed int64) int64 {
	return min(2*budget+ownBytes, allowed/10*9)
}

// watchCollections has the collector take less time for a small heap, and less memory for a large one.
func watchCollections(now int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	sentinel := &live[0] // which every collection finds dead
	runtime.SetFinalizer(sentinel, func(*metrics.Sample) {
		metrics.Read(live)
		wanted := gcPercent
		if live[0].Value.Uint64() > largeHeapBytes {
			wanted = gcPercentLarge
		}
		if wanted != now {
			debug.SetGCPercent(wanted)
		}
		watchCollections(wanted)
	})
}

// Sweep gives memory back to the system soon after a burst of large messages, until ctx ends.
func (b *Budget) Sweep(ctx context.Context) {
	heap := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	for clock.Sleep(ctx, sweepEvery) {
		metrics.Read(heap)
		taken := int64(0)
		for _, each := range heap {
			taken += int64(each.Value.Uint64())
		}
		if isWorthSweeping(taken, b.Held.Load()) {
			debug.FreeOSMemory()
		}
	}
}

// isWorthSweeping says whether far more memory is taken than what is held explains.
func isWorthSweeping(taken, held int64) bool { return taken > 2*held+ownBytes }

// BudgetFor returns the default of --max-buffered-bytes: enough for some of the largest messages, and less
// than the control group allows.
func BudgetFor(maxJSONBytes, allowed int64) int64 {
	wanted := max(defaultBufferedBytes, min(maxJSONBytes, math.MaxInt64/messagesHeld)*messagesHeld)
	return max(min(wanted, allowed/2), LeastBufferedBytes)
}

const (
	LeastBufferedBytes   = 1 << 20
	defaultBufferedBytes = 512 << 20
	messagesHeld         = 12 // times the largest JSON: one as its bytes, and as numbers
)
