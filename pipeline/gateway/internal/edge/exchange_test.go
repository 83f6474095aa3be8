package edge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
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
