package access

import (
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// mostAddresses bounds the meters of callers whom no file names: of twice as many the older half is forgotten.
const mostAddresses = 32768

// meter counts what one caller does.
type meter struct {
	rate     *rate.Limiter // nil: any rate
	limits   Limits
	inFlight atomic.Int64
}

func newMeter(limits Limits) *meter {
	m := &meter{limits: limits}
	if limits.RequestsPerS > 0 {
		burst := limits.Burst
		if burst == 0 {
			burst = int(math.Ceil(limits.RequestsPerS))
		}
		m.rate = rate.NewLimiter(rate.Limit(limits.RequestsPerS), burst)
	}
	return m
}

// take lets one request in, until `done` of the meter; or says after how many seconds to come again.
func (m *meter) take(now time.Time) (wait time.Duration, isIn bool) {
	if most := int64(m.limits.InFlight); most > 0 && m.inFlight.Add(1) > most {
		m.inFlight.Add(-1)
		return time.Second, false
	}
	if m.rate == nil {
		return 0, true
	}
	asked := m.rate.ReserveN(now, 1)
	if wait := asked.DelayFrom(now); wait > 0 || !asked.OK() {
		asked.CancelAt(now)
		m.done()
		return max(wait, time.Millisecond), false
	}
	return 0, true
}

// done ends a request that was let in.
func (m *meter) done() {
	if m.limits.InFlight > 0 {
		m.inFlight.Add(-1)
	}
}

// who is a caller to the meters: a name, and of anonymous callers a network.
type who struct {
	name    string
	network netip.Prefix
}

// meters are those of all callers: by the names that the file has, and of others as long as they are not too many.
type meters struct {
	lock         sync.Mutex
	named        map[string]*meter
	young, older map[who]*meter
}

func newMeters() *meters {
	return &meters{named: map[string]*meter{}, young: map[who]*meter{}}
}

// of returns the meter of a caller; nil: there are no limits.
func (m *meters) of(caller *Caller, address netip.Addr) *meter {
	if caller.limits == (Limits{}) {
		return nil
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if caller.Name != anonymousName && caller.label == "" {
		found := m.named[caller.Name]
		if found == nil || found.limits != caller.limits { // the file was changed
			found = newMeter(caller.limits)
			m.named[caller.Name] = found
		}
		return found
	}
	key := who{name: caller.Name}
	if caller.Name == anonymousName {
		key.network = networkOf(address)
	}
	found := m.young[key]
	if found == nil {
		if found = m.older[key]; found == nil {
			found = newMeter(caller.limits)
		}
		if len(m.young) >= mostAddresses {
			m.young, m.older = map[who]*meter{}, m.young
		}
		m.young[key] = found
	}
	return found
}

// networkOf returns what one caller may have of addresses: of IPv6 it is a /64.
func networkOf(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	found, _ := address.Prefix(bits)
	return found
}
