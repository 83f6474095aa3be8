package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const metricPrefix = "pipeline_gateway_"

// latencyBuckets double from 0.5 ms to 33 s.
var latencyBuckets = prometheus.ExponentialBuckets(0.0005, 2, 17)

// stats is what the gateway counts; names begin with pipeline_gateway_.
type stats struct {
	registry           *prometheus.Registry
	requests           *prometheus.CounterVec
	durations          *prometheus.HistogramVec
	inFlight           prometheus.Gauge
	backendUp          *prometheus.GaugeVec
	connections        prometheus.Gauge
	refusedConnections prometheus.Counter
	handedOver         *prometheus.CounterVec
	retries            prometheus.Counter
	received           prometheus.Counter
	sent               prometheus.Counter
}

func newStats() *stats {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	s := &stats{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "requests_total", Help: "Requests by route and HTTP status; 499: the caller left.",
		}, []string{"route", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "request_duration_seconds", Help: "Time from a request's head to the end of its answer.",
			Buckets: latencyBuckets,
		}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "requests_in_flight", Help: "Requests that are not answered yet.",
		}),
		backendUp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "backend_up", Help: "1 for a backend that serves, else 0.",
		}, []string{"backend"}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "connections", Help: "Callers' connections that are open.",
		}),
		refusedConnections: counter("refused_connections_total", "Connections that were one too many."),
		handedOver: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "handed_over_total", Help: "Inference requests that a backend's HTTP door answered, by reason.",
		}, []string{"reason"}),
		retries:  counter("retries_total", "Calls that never left and went to another backend."),
		received: counter("received_bytes_total", "Bytes of bodies of inference requests, as they came."),
		sent:     counter("sent_bytes_total", "Bytes of answers' bodies."),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	ours := prometheus.WrapRegistererWithPrefix(metricPrefix, s.registry)
	ours.MustRegister(
		s.connections, s.refusedConnections, s.requests, s.durations, s.inFlight, s.backendUp, s.handedOver, s.retries, s.received, s.sent,
		info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return s
}

// watch has the metrics tell what a budget holds.
func (s *stats) watch(held *budget) {
	prometheus.WrapRegistererWithPrefix(metricPrefix, s.registry).MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "buffered_bytes", Help: "Bytes of requests and answers that are held, roughly.",
	}, func() float64 { return float64(held.held.Load()) }))
}

// answered counts an exchange that is over.
func (s *stats) answered(x *exchange, took time.Duration) {
	s.requests.WithLabelValues(x.route.String(), strconv.Itoa(x.status)).Inc()
	s.durations.WithLabelValues(x.route.String()).Observe(took.Seconds())
	s.sent.Add(float64(x.sent))
}

// handler writes all metrics as text.
func (s *stats) handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{DisableCompression: true})
}
