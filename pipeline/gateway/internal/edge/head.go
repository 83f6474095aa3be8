package edge

import (
	"context"
	"net/http"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/deadline"
)

// States of the head of an answer from a backend's HTTP port; the first change from headAwaited counts.
const (
	headAwaited = iota
	headCame
	headLate // and not awaited any more
)

// timeToBegin returns the time until an answer from a backend's HTTP port must begin, counted from the
// arrival of the request. The answer may last longer, as recordings and streams do.
//
// The standard deadline is for inference, which uses POST in all of the door's protocols.
func (x *exchange) timeToBegin() (limit time.Duration, isLimited bool) {
	var standard deadline.Deadline
	if x.request.Method == http.MethodPost {
		standard = deadline.Standard(x.cfg.Timeout)
	}
	given, isReadable := deadline.Of(x.request.Header, standard)
	if !isReadable { // which is for the door to say
		given = standard
	}
	return given.With(x.cfg.Slack), given.Text != ""
}

// awaitHead breaks off a request whose answer does not begin within the limit. The body has a time
// of its own to come; beyond that it is the backend that does not take it.
func (x *exchange) awaitHead(ctx context.Context, limit time.Duration, breakOff context.CancelFunc) {
	if x.stream != nil {
		x.stream.await(ctx, x.cfg.Patience)
	}
	if clock.Sleep(ctx, limit) && x.head.CompareAndSwap(headAwaited, headLate) {
		breakOff()
	}
}
