package edge

import (
	"testing"
	"time"

	"pipeline/gateway/internal/config"
)

func TestABodyHasAsMuchTimeAsItHasBrought(t *testing.T) {
	started := time.Unix(1000, 0)
	cfg := &config.Config{Patience: time.Minute, MinUploadRate: 1000}
	for _, each := range []struct {
		received    int64
		after, want time.Duration
	}{
		{0, 0, time.Minute},
		{0, 59 * time.Second, time.Minute},
		{1000, 50 * time.Second, 61 * time.Second},
		{50_000, 50 * time.Second, 110 * time.Second}, // just fast enough
		{1 << 30, time.Second, 61 * time.Second},      // what came fast is no leave to pause
		{1 << 30, time.Hour, time.Hour + time.Minute},
		{1800_000, time.Hour, 1860 * time.Second}, // half of it: over long ago
	} {
		p := &pace{cfg: cfg, started: started, received: each.received}
		if got := p.limitAt(started.Add(each.after)).Sub(started); got != each.want {
			t.Errorf("%d bytes after %v: %v, not %v", each.received, each.after, got, each.want)
		}
	}
}
