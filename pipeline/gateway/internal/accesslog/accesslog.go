// Package accesslog logs requests: the caller, the request and its outcome, without queries, bodies and credentials.
package accesslog

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
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
	Action  string // "POST /path HTTP/1.1", or gRPC's method
	Status  string
	Bytes   int64 // of the answer's body
	Took    time.Duration
	Backend string
	Caller  string // that is the gate's name for it
	Trace   string // the traceparent
}

// fields are those of a line, in their order: the name in JSON, the form in text, and the value, "" if it is not known.
// The server's are the same (frontends/access_log.py), which a test holds.
var fields = []struct {
	name, form string
	value      func(e *Entry) any
}{
	{"address", "%s", func(e *Entry) any { return e.Address }},
	{"action", "%q", func(e *Entry) any { return e.Action }},
	{"status", "%s", func(e *Entry) any { return e.Status }},
	{"bytes", "%dB", func(e *Entry) any { return e.Bytes }},
	{"ms", "%.2fms", func(e *Entry) any { return math.Round(float64(e.Took)/float64(time.Millisecond)*100) / 100 }},
	{"backend", "%s", func(e *Entry) any { return e.Backend }},
	{"caller", "%s", func(e *Entry) any { return e.Caller }},
	{"trace_id", "%s", func(e *Entry) any { return traceID(e.Trace) }},
}

// Write writes it.
func (l *Log) Write(e *Entry) {
	if l.isJSON {
		told := make([]slog.Attr, len(fields))
		for i, field := range fields {
			told[i] = slog.Any(field.name, field.value(e))
		}
		l.log.LogAttrs(context.Background(), slog.LevelInfo, "request", told...)
		return
	}
	told := make([]string, len(fields))
	for i, field := range fields {
		told[i] = "-"
		if value := field.value(e); value != "" {
			told[i] = fmt.Sprintf(field.form, value)
		}
	}
	l.log.Info(strings.Join(told, " "))
}

// traceID returns that of a traceparent, 00-<id>-<span>-<flags>; "": there is none.
func traceID(traceparent string) string {
	const start, end = 3, 35
	if len(traceparent) <= end || traceparent[start-1] != '-' || traceparent[end] != '-' {
		return ""
	}
	return traceparent[start:end]
}
