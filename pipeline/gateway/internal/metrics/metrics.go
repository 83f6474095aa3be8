// Package metrics has the gateway's metrics.
package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"

	"pipeline/gateway/internal/version"
)

const MetricPrefix = "pipeline_gateway_"

// latencyBuckets double from 0.5 ms to 33 s.
var latencyBuckets = prometheus.ExponentialBuckets(0.0005, 2, 17)

// Stats is what the gateway counts; names begin with pipeline_gateway_.
type Stats struct {
	registry           *prometheus.Registry
	requests           *prometheus.CounterVec
	durations          *prometheus.HistogramVec
	InFlight           prometheus.Gauge
	Connections        prometheus.Gauge
	RefusedConnections prometheus.Counter
	Fallbacks          *prometheus.CounterVec
	Retries            prometheus.Counter
	RetriesRefused     prometheus.Counter
	Hedges             prometheus.Counter
	rpcs               *prometheus.CounterVec
	rpcDurations       *prometheus.HistogramVec
	rpcHandles         sync.Map // of an rpcKey: a rpcHandle
	admissions         *prometheus.CounterVec
	hungUp             *prometheus.CounterVec
	Received           prometheus.Counter
	sent               prometheus.Counter
}

func New() *Stats {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	s := &Stats{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "requests_total", Help: "Requests by route and HTTP status; 499: the caller left.",
		}, []string{"route", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "request_duration_seconds", Help: "Time from a request's head to the end of its answer.",
			Buckets: latencyBuckets,
		}, []string{"route"}),
		rpcs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grpc_requests_total", Help: "Calls of gRPC by method and status.",
		}, []string{"method", "code"}),
		rpcDurations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_request_duration_seconds", Help: "Time from a call's head to its end.", Buckets: latencyBuckets,
		}, []string{"method"}),
		InFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "requests_in_flight", Help: "Requests that are not answered yet.",
		}),
		Connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "connections", Help: "Callers' connections that are open.",
		}),
		RefusedConnections: counter("refused_connections_total", "Connections that were one too many."),
		Fallbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "handed_over_total", Help: "Inference requests that a backend's HTTP door answered, by reason.",
		}, []string{"reason"}),
		Retries:        counter("retries_total", "Requests that went to another backend."),
		RetriesRefused: counter("retries_refused_total", "Requests that could have gone to another backend, but for the budget of retries."),
		Hedges:         counter("hedges_total", "Requests that two backends were asked at once."),
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "admissions_total", Help: "Requests by caller, and what became of them at the door.",
		}, []string{"caller", "outcome"}),
		hungUp: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hung_up_total", Help: "Connections of HTTP/2 that were ended for too many frames, by kind.",
		}, []string{"reason"}),
		Received: counter("received_bytes_total", "Bytes of bodies of inference requests, as they came."),
		sent:     counter("sent_bytes_total", "Bytes of answers' bodies."),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version.Version},
	})
	info.Set(1)
	ours := prometheus.WrapRegistererWithPrefix(MetricPrefix, s.registry)
	ours.MustRegister(
		s.Connections, s.RefusedConnections, s.requests, s.durations, s.rpcs, s.rpcDurations, s.InFlight, s.Fallbacks, s.Retries, s.RetriesRefused, s.Hedges, s.admissions, s.hungUp, s.Received, s.sent,
		info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return s
}

// Watch has the metrics tell how many bytes are held.
func (s *Stats) Watch(held func() int64) {
	prometheus.WrapRegistererWithPrefix(MetricPrefix, s.registry).MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "buffered_bytes", Help: "Bytes of requests and answers that are held, roughly.",
	}, func() float64 { return float64(held()) }))
}

// Route is what is counted of the exchanges of one route.
type Route struct {
	stats    *Stats
	name     string
	duration prometheus.Observer
	statuses [600]atomic.Pointer[prometheus.Counter] // the codes that were answered with, as far as they are known
}

// Route returns that of a name.
func (s *Stats) Route(name string) *Route {
	return &Route{stats: s, name: name, duration: s.durations.WithLabelValues(name)}
}

// Answered counts an exchange that is over.
func (r *Route) Answered(status int, sent int64, took time.Duration) {
	(*r.counter(status)).Inc()
	r.duration.Observe(took.Seconds())
	r.stats.sent.Add(float64(sent))
}

func (r *Route) counter(status int) *prometheus.Counter {
	isUsual := status >= 0 && status < len(r.statuses)
	if isUsual {
		if known := r.statuses[status].Load(); known != nil {
			return known
		}
	}
	found := r.stats.requests.WithLabelValues(r.name, strconv.Itoa(status))
	if isUsual {
		r.statuses[status].Store(&found)
	}
	return &found
}

type rpcKey struct {
	method string
	code   codes.Code
}

type rpcHandle struct {
	calls prometheus.Counter
	times prometheus.Observer
}

// AnsweredRPC counts a call of gRPC that is over. The method is one that there is, or "" for any other.
func (s *Stats) AnsweredRPC(method string, code codes.Code, took time.Duration) {
	key := rpcKey{method, code}
	found, isThere := s.rpcHandles.Load(key)
	if !isThere {
		found = rpcHandle{s.rpcs.WithLabelValues(method, code.String()), s.rpcDurations.WithLabelValues(method)}
		s.rpcHandles.Store(key, found)
	}
	handle := found.(rpcHandle)
	handle.calls.Inc()
	handle.times.Observe(took.Seconds())
}

// Handler writes all metrics as text.
func (s *Stats) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// LetIn counts a request that came to the door.
func (s *Stats) LetIn(caller, outcome string) { s.admissions.WithLabelValues(caller, outcome).Inc() }

// HungUp counts a connection that was ended for too many frames of a kind.
func (s *Stats) HungUp(reason string) { s.hungUp.WithLabelValues(reason).Inc() }
