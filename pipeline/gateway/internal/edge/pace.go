package edge

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
)

// pace is the body of a request, with a limit on its time: the patience, plus the time of its bytes at the
// minimum rate; and no pause may be as long as the patience. So a large body may take hours, but a body that
// trickles in to occupy the server is refused.
type pace struct {
	io.ReadCloser
	control  *http.ResponseController
	cfg      *config.Config
	started  time.Time
	limit    time.Time // the last one that was set
	received int64
	exchange *exchange // its caller may have a limit of bytes

	lock  sync.Mutex
	isOff bool
	timer *time.Timer // of a stream of HTTP/2; nil: not yet
}

// paceStep is by how much the limit has to grow to be set again: it costs.
const paceStep = 8 // of the patience

var longAgo = time.Unix(1, 0)

func newPace(x *exchange) *pace {
	p := &pace{ReadCloser: x.request.Body, control: x.control(), cfg: x.cfg, started: x.started, exchange: x}
	p.extend(x.started)
	return p
}

// Read reads on.
func (p *pace) Read(buffer []byte) (int, error) {
	if p.received > 0 {
		p.extend(time.Now())
	}
	n, err := p.ReadCloser.Read(buffer)
	p.received += int64(n)
	if wait := p.exchange.grant.Received(n); wait > 0 && err == nil {
		clock.Sleep(p.exchange.request.Context(), wait)
		p.started = p.started.Add(wait) // it is not the caller who is slow
	}
	if err == io.EOF {
		p.end()
	}
	return n, err
}

// extend sets the limit for what is read next.
func (p *pace) extend(now time.Time) {
	limit := p.limitAt(now)
	if limit.Sub(p.limit) < p.cfg.Patience/paceStep {
		return
	}
	p.limit = limit
	p.lock.Lock()
	defer p.lock.Unlock()
	switch {
	case p.isOff:
	case p.exchange.request.ProtoMajor == 1:
		_ = p.control.SetReadDeadline(limit)
	case p.timer == nil:
		p.timer = time.AfterFunc(limit.Sub(now), p.giveUp)
	default:
		p.timer.Reset(limit.Sub(now))
	}
}

// giveUp ends the body of a stream of HTTP/2. The timer is ours: package http keeps one that is set for a
// stream which
// its caller has reset, and the stream with it, until it fires.
func (p *pace) giveUp() {
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.isOff {
		_ = p.control.SetReadDeadline(longAgo)
	}
}

func (p *pace) limitAt(now time.Time) time.Time {
	limit := now.Add(p.cfg.Patience)
	earned := float64(p.received) / float64(p.cfg.MinUploadRate) // seconds
	if due := p.started.Add(p.cfg.Patience); earned < now.Sub(p.started).Seconds() {
		limit = due.Add(time.Duration(earned * float64(time.Second)))
	}
	return limit
}

// end takes the limit off: from here on it is we who take time, or somebody else sets one.
func (p *pace) end() {
	if p == nil {
		return
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	switch {
	case p.isOff:
	case p.timer != nil:
		p.timer.Stop()
	case p.exchange.request.ProtoMajor == 1:
		_ = p.control.SetReadDeadline(time.Time{})
	}
	p.isOff = true
}

// leave ends the limit of a stream of HTTP/2 with its handler; what is left of a body of HTTP/1 is still to
// come in time.
func (p *pace) leave() {
	if p != nil && p.exchange.request.ProtoMajor != 1 {
		p.end()
	}
}

// tooSlow answers a body that does not come.
func tooSlow(cfg *config.Config) *failure.Error {
	text := fmt.Sprintf("the request's body did not arrive within %g s and a second for each %d bytes of it (--min-upload-rate)",
		cfg.Patience.Seconds(), cfg.MinUploadRate)
	return &failure.Error{Status: http.StatusRequestTimeout, ErrNo: failure.CodeTimeout, Text: text, MustClose: true}
}
