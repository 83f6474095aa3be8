package main

import (
	"bytes"
	"io"
	"net/http"
)

// handOver lets the HTTP door of a backend answer a call whose body was read.
func (g *gateway) handOver(asked *call, why *handOver) {
	x := asked.exchange
	if !g.canHandOver(why) {
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

// leaveToDoor lets the HTTP door of a backend answer a request whose body was not read.
func (g *gateway) leaveToDoor(x *exchange, why *handOver) {
	if !g.canHandOver(why) {
		x.refuseEarly(why.own)
		return
	}
	g.web.forward(x)
}

// canHandOver says whether there is a door to judge, and counts the case.
func (g *gateway) canHandOver(why *handOver) bool {
	if !g.hasDoor() {
		return false
	}
	g.stats.handedOver.WithLabelValues(why.reason).Inc()
	return true
}

// hasDoor says whether the HTTP port of any backend can be asked.
func (g *gateway) hasDoor() bool { return len(g.pool.candidates.Load().web) > 0 }
