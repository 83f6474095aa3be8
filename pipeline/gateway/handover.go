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
	again := *x.request
	again.ContentLength = int64(len(asked.original))
	again.TransferEncoding = nil
	again.GetBody = func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(asked.original)), nil
	}
	again.Body, _ = again.GetBody()
	if len(asked.original) == 0 {
		again.Body = http.NoBody
	}
	g.web.serve(x, &again)
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
