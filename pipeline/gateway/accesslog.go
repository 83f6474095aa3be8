package main

import (
	"sync/atomic"
	"time"
)

// accessLog writes a line for every n-th request.
type accessLog struct {
	log   *logger
	every uint64 // 0: for none
	seen  atomic.Uint64
}

func (a *accessLog) answered(x *exchange, took time.Duration) {
	if a.every == 0 || a.seen.Add(1)%a.every != 0 {
		return
	}
	backend := x.backend
	if backend == "" {
		backend = "-"
	}
	r := x.request
	a.log.infof("%s %q %d %dB %.2fms %s", r.RemoteAddr, r.Method+" "+r.RequestURI+" "+r.Proto,
		x.status, x.sent, float64(took)/float64(time.Millisecond), backend)
}
