// Package accesslog writes a line for requests: who asked for what, and what came of it. No query, body or credential is
// in it.
package accesslog

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"
)

// Log writes a line for every n-th request. nil writes none.
type Log struct {
	log    *slog.Logger
	every  uint64
	isJSON bool
	seen   atomic.Uint64
}

// New returns a log; nil for one of no request.
func New(log *slog.Logger, every uint64, isJSON bool) *Log {
	if every == 0 {
		return nil
	}
	return &Log{log: log, every: every, isJSON: isJSON}
}

// Wants says whether the next request is to be written: an Entry of others need not be made.
func (l *Log) Wants() bool { return l != nil && l.seen.Add(1)%l.every == 0 }

// Entry is a request that is over. Texts that are "" are not known.
type Entry struct {
	Address string // who asked, with a port
	Caller  string // that is the gate's name for it
	Action  string // "POST /path HTTP/1.1", or gRPC's method
	Status  string
	Bytes   int64 // of the answer's body
	Took    time.Duration
	Backend string
	Trace   string // the traceparent
}

// Write writes it.
func (l *Log) Write(e *Entry) {
	trace := traceID(e.Trace)
	ms := float64(e.Took) / float64(time.Millisecond)
	if !l.isJSON {
		l.log.Info(fmt.Sprintf("%s %q %s %dB %.2fms %s %s %s", e.Address, e.Action, e.Status, e.Bytes, ms, or(e.Backend), or(e.Caller), or(trace)))
		return
	}
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "request", slog.String("address", e.Address), slog.String("caller", e.Caller),
		slog.String("action", e.Action), slog.String("status", e.Status), slog.Int64("bytes", e.Bytes), slog.Float64("ms", math.Round(ms*100)/100),
		slog.String("backend", e.Backend), slog.String("trace_id", trace))
}

// traceID returns that of a traceparent, 00-<id>-<span>-<flags>; "": there is none.
func traceID(traceparent string) string {
	const start, end = 3, 35
	if len(traceparent) <= end || traceparent[start-1] != '-' || traceparent[end] != '-' {
		return ""
	}
	return traceparent[start:end]
}

func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
