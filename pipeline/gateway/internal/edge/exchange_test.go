package edge

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pipeline/gateway/internal/config"
)

// deadlines is a ResponseWriter that notes for how long the caller may take nothing.
type deadlines struct {
	*httptest.ResponseRecorder
	set []bool
}

// SetWriteDeadline is for http.ResponseController.
func (d *deadlines) SetWriteDeadline(limit time.Time) error {
	d.set = append(d.set, !limit.IsZero())
	return nil
}

// Package http keeps a stream for as long as it has a deadline, also one that its caller has reset.
func TestAStreamThatIsResetGetsNoDeadline(t *testing.T) {
	ctx, reset := context.WithCancel(t.Context())
	request := httptest.NewRequestWithContext(ctx, "POST", "/svc/p", nil)
	request.ProtoMajor = 2
	writer := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	x := &exchange{ResponseWriter: writer, request: request, cfg: &config.Config{WriteTimeout: time.Second}, status: http.StatusOK}
	_, _ = x.Write([]byte("{}"))
	x.lastWords()
	if !slices.Equal(writer.set, []bool{true, false, true}) {
		t.Errorf("%v", writer.set)
	}
	reset()
	x.lastWords()
	if len(writer.set) != 3 {
		t.Errorf("%v", writer.set)
	}
}

func TestARefusedCallerThatIsBusySendingIsReadForLonger(t *testing.T) {
	for _, each := range []struct {
		piece  int           // bytes of a second
		sends  time.Duration // for so long
		isLast bool          // the gateway stops
		taken  time.Duration
	}{
		{piece: lingerBytes / 4, sends: 20 * time.Second, taken: 20 * time.Second},
		{piece: lingerBytes / 4, sends: time.Hour, taken: lingerMost},
		{piece: lingerBytes / 4, sends: time.Hour, isLast: true, taken: lingerFor},
		{piece: 1, sends: time.Hour, taken: lingerFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			ours, callers := net.Pipe()
			var sending sync.WaitGroup
			sending.Go(func() {
				defer callers.Close()
				for began := time.Now(); time.Since(began) < each.sends; time.Sleep(time.Second) {
					if _, err := callers.Write(make([]byte, each.piece)); err != nil {
						return
					}
				}
			})
			var draining atomic.Bool
			draining.Store(each.isLast)
			began := time.Now()
			lingerOn(ours, &draining)
			took := time.Since(began)
			ours.Close()
			sending.Wait()
			if took != each.taken {
				t.Errorf("%+v: %v", each, took)
			}
		})
	}
}
