package edge

import (
	"bytes"
	"io"
	"net/http"
)

// fallBack lets the HTTP door of a backend answer a call whose body was read.
func (g *Handler) fallBack(asked *call, why *fallback) {
	x := asked.exchange
	if !g.canFallBack(why) {
		x.refuse(why.own)
		return
	}
	g.web.serve(x, withBody(x.request, asked.original))
}

// withBody returns a request whose body was read.
func withBody(r *http.Request, body []byte) *http.Request {
	again := *r
	again.ContentLength = int64(len(body))
	again.TransferEncoding = nil
	again.GetBody = func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(body)), nil
	}
	again.Body, _ = again.GetBody()
	if len(body) == 0 {
		again.Body = http.NoBody
	}
	return &again
}

// leaveToFallback lets the HTTP door of a backend answer a request whose body was not read.
func (g *Handler) leaveToFallback(x *exchange, why *fallback) {
	if !g.canFallBack(why) {
		x.refuseEarly(why.own)
		return
	}
	g.web.forward(x)
}

// canFallBack says whether there is a door to judge, and counts the case.
func (g *Handler) canFallBack(why *fallback) bool {
	if !g.hasFallback() {
		return false
	}
	g.stats.Fallbacks.WithLabelValues(why.reason).Inc()
	return true
}

// hasFallback says whether the HTTP port of any backend can be asked.
func (g *Handler) hasFallback() bool { return len(g.Pool.Candidates.Load().Web) > 0 }
