// Package clock waits.
package clock

import (
	"context"
	"time"
)

// Sleep waits; it returns false if ctx has ended.
func Sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
