package edge

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
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
		{1 << 30, time.Second, 61 * time.Second},      // a fast beginning does not allow a pause
		{1 << 30, time.Hour, time.Hour + time.Minute},
		{1800_000, time.Hour, 1860 * time.Second}, // at half of the rate the limit has passed
	} {
		p := &pace{cfg: cfg, started: started, received: each.received}
		if got := p.limitAt(started.Add(each.after)).Sub(started); got != each.want {
			t.Errorf("%d bytes after %v: %v, not %v", each.received, each.after, got, each.want)
		}
	}
}

// readDeadlines is a ResponseWriter that records the read deadlines.
type readDeadlines struct {
	*httptest.ResponseRecorder
	set chan time.Time
}

// SetReadDeadline is for http.ResponseController.
func (d *readDeadlines) SetReadDeadline(limit time.Time) error {
	d.set <- limit
	return nil
}

// pacedBody returns the pace of a request in a version of HTTP, whose caller has so long.
func pacedBody(version int, patience time.Duration) (*pace, chan time.Time) {
	request := httptest.NewRequest("POST", "/svc/p", strings.NewReader("{}"))
	request.ProtoMajor = version
	writer := &readDeadlines{httptest.NewRecorder(), make(chan time.Time, 8)}
	x := &exchange{ResponseWriter: writer, request: request, cfg: &config.Config{Patience: patience, MinUploadRate: 1}, started: time.Now()}
	return newPace(x), writer.set
}

func TestABodyOfHTTP2ThatDoesNotComeIsGivenUp(t *testing.T) {
	_, set := pacedBody(2, time.Nanosecond)
	if limit := gatewaytest.Soon(t, "an end", set); !limit.Equal(longAgo) {
		t.Errorf("%v", limit)
	}
}

func TestAStreamKeepsNoTimeToRead(t *testing.T) {
	body, set := pacedBody(2, time.Hour)
	body.leave()
	if body.timer.Stop() || len(set) > 0 {
		t.Error("it has a limit still")
	}
	body.giveUp() // it was on its way
	if len(set) > 0 {
		t.Error("it is given up behind its end")
	}
	first, set := pacedBody(1, time.Hour)
	first.leave() // the rest of it is to come in time, also without a handler
	if len(set) != 1 || (<-set).IsZero() {
		t.Error("HTTP/1 has no limit")
	}
	first.end()
	if limit := <-set; !limit.IsZero() {
		t.Errorf("%v", limit)
	}
}
