package metrics

import "github.com/prometheus/client_golang/prometheus"

// Backend is the figures of one backend.
type Backend struct {
	Name      string
	IsUp      bool
	Pending   int64
	IsEjected bool
	Ejections int64
	Retries   int64
}

// backendFigures tell of the backends that there are when somebody asks.
type backendFigures struct {
	now                                      func() []Backend
	up, pending, ejected, ejections, retries *prometheus.Desc
}

// WatchBackends has the metrics tell of the backends that `now` returns.
func (s *Stats) WatchBackends(now func() []Backend) {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(MetricPrefix+name, help, []string{"backend"}, nil)
	}
	s.registry.MustRegister(&backendFigures{
		now:       now,
		up:        describe("backend_up", "1 for a backend that serves, else 0."),
		pending:   describe("backend_pending", "Requests that a backend was asked and that are not over."),
		ejected:   describe("backend_ejected", "1 for a backend that is ejected as its requests fail, else 0."),
		ejections: describe("backend_ejections_total", "Ejections of a backend."),
		retries:   describe("backend_retries_total", "Requests that came to a backend after another one."),
	})
}

// Describe is for the registry.
func (f *backendFigures) Describe(described chan<- *prometheus.Desc) {
	for _, each := range []*prometheus.Desc{f.up, f.pending, f.ejected, f.ejections, f.retries} {
		described <- each
	}
}

// Collect is for the registry.
func (f *backendFigures) Collect(collected chan<- prometheus.Metric) {
	for _, each := range f.now() {
		tell := func(what *prometheus.Desc, kind prometheus.ValueType, value float64) {
			collected <- prometheus.MustNewConstMetric(what, kind, value, each.Name)
		}
		tell(f.up, prometheus.GaugeValue, oneIf(each.IsUp))
		tell(f.pending, prometheus.GaugeValue, float64(each.Pending))
		tell(f.ejected, prometheus.GaugeValue, oneIf(each.IsEjected))
		tell(f.ejections, prometheus.CounterValue, float64(each.Ejections))
		tell(f.retries, prometheus.CounterValue, float64(each.Retries))
	}
}

func oneIf(isSo bool) float64 {
	if isSo {
		return 1
	}
	return 0
}
