package config

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"pipeline/gateway/internal/balance"
)

// Policies by which a backend is chosen.
const (
	RoundRobin   = "round-robin"
	LeastPending = "least-pending"
	Sticky       = "sticky" // requests of one sequence go to one backend, all else round robin
)

var policies = []string{RoundRobin, LeastPending, Sticky}

// Balancing is how requests are spread over the backends, and how failed ones are handled.
type Balancing struct {
	Policy         string
	HealthInterval time.Duration // between two checks of a backend; 0: it is not checked
	HealthTimeout  time.Duration
	Checks         balance.Thresholds
	Ejection       balance.EjectionLimits
	RetryShare     float64       // of the requests, that may be sent a second time
	RetryRate      float64       // a second, that may be beside
	HedgeAfter     time.Duration // 0: never
}

const (
	defaultHealthInterval = 2 * time.Second
	defaultHealthTimeout  = 2 * time.Second
	defaultUnhealthy      = 3 // user code that holds the GIL also keeps a server from answering
	defaultHealthy        = 2
	defaultEjectAfter     = 5
	defaultEjectTime      = 10 * time.Second
	defaultEjectLongest   = 5 * time.Minute
	defaultRetryShare     = 0.2
	defaultRetryRate      = 10
)

func (b *Balancing) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&b.Policy, "policy", RoundRobin, "choice of the backend for a request: round-robin, least-pending, or sticky: round-robin, but all requests of a sequence go to one backend")
	flags.DurationVar(&b.HealthInterval, "health-interval", defaultHealthInterval, "time between two checks of a backend by gRPC's health service; 0: no checks, only the backend's own reports count")
	flags.DurationVar(&b.HealthTimeout, "health-timeout", defaultHealthTimeout, "time after which an unanswered check has failed")
	flags.IntVar(&b.Checks.Unhealthy, "unhealthy-after", defaultUnhealthy, "number of failed checks in a row after which a backend gets no requests")
	flags.IntVar(&b.Checks.Healthy, "healthy-after", defaultHealthy, "number of answered checks in a row after which it gets requests again")
	flags.IntVar(&b.Ejection.Failures, "eject-after", defaultEjectAfter, "number of failed requests in a row after which a backend is ejected for some time; 0: never")
	flags.DurationVar(&b.Ejection.First, "eject-time", defaultEjectTime, "duration of the first ejection; each further one in a row takes twice as long")
	flags.DurationVar(&b.Ejection.Longest, "eject-longest", defaultEjectLongest, "maximum duration of an ejection")
	flags.Float64Var(&b.RetryShare, "retry-share", defaultRetryShare, "share of the requests that may be sent a second time, to another backend (0 to 1)")
	flags.Float64Var(&b.RetryRate, "retry-rate", defaultRetryRate, "number of requests per second that may be sent a second time in addition to --retry-share")
	flags.DurationVar(&b.HedgeAfter, "hedge-after", 0, "time without an answer after which a request with Pipeline-Idempotent: 1 also goes to another backend; 0: never")
}

// check returns an error if options that are valid each do not fit together.
func (b *Balancing) check() error {
	switch {
	case !slices.Contains(policies, b.Policy):
		return fmt.Errorf("--policy %q is not one of %s", b.Policy, strings.Join(policies, ", "))
	case b.HealthInterval < 0 || b.HealthTimeout <= 0:
		return errors.New("--health-interval must not be negative, and --health-timeout must be positive")
	case b.Checks.Unhealthy < 1 || b.Checks.Healthy < 1:
		return errors.New("--unhealthy-after and --healthy-after must be at least 1")
	case b.Ejection.Failures < 0:
		return fmt.Errorf("--eject-after %d must not be negative", b.Ejection.Failures)
	case b.Ejection.First <= 0 || b.Ejection.Longest < b.Ejection.First:
		return errors.New("--eject-time must be positive, and --eject-longest no less")
	case b.RetryShare < 0 || b.RetryShare > 1 || b.RetryRate < 0:
		return errors.New("--retry-share must be in 0..1, and --retry-rate must not be negative")
	case b.HedgeAfter < 0:
		return errors.New("--hedge-after must not be negative")
	}
	return nil
}
