package metrics

import "github.com/prometheus/client_golang/prometheus"

// Backend is what is told of one.
type Backend struct {
	Name    string
	IsUp    bool
	Pending int64
}

// backendFigures tell of the backends that there are when somebody asks.
type backendFigures struct {
	now         func() []Backend
	up, pending *prometheus.Desc
}

// WatchBackends has the metrics tell of the backends that `now` returns.
func (s *Stats) WatchBackends(now func() []Backend) {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(MetricPrefix+name, help, []string{"backend"}, nil)
	}
	s.registry.MustRegister(&backendFigures{
		now:     now,
		up:      describe("backend_up", "1 for a backend that serves, else 0."),
		pending: describe("backend_pending", "Requests that a backend was asked and that are not over."),
	})
}

// Describe is for the registry.
func (f *backendFigures) Describe(described chan<- *prometheus.Desc) {
	described <- f.up
	described <- f.pending
}

// Collect is for the registry.
func (f *backendFigures) Collect(collected chan<- prometheus.Metric) {
	for _, each := range f.now() {
		up := 0.0
		if each.IsUp {
			up = 1
		}
		collected <- prometheus.MustNewConstMetric(f.up, prometheus.GaugeValue, up, each.Name)
		collected <- prometheus.MustNewConstMetric(f.pending, prometheus.GaugeValue, float64(each.Pending), each.Name)
	}
}
