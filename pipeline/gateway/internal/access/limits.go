package access

import (
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"pipeline/gateway/internal/memory"
)

// mostAddresses bounds the meters of callers whom no file names: of twice as many the older half is
// forgotten.
const mostAddresses = 32768

// meter counts what one caller does.
type meter struct {
	rate     *rate.Limiter // nil: any rate
	bytes    *rate.Limiter // nil: any rate
	budget   *memory.Budget
	limits   Limits
	inFlight atomic.Int64
}

func newMeter(limits Limits) *meter {
	m := &meter{limits: limits, rate: limiter(limits.RequestsPerS, limits.Burst), bytes: limiter(limits.BytesPerS, limits.BytesBurst)}
	if limits.BufferedBytes > 0 {
		m.budget = memory.NewBudget(limits.BufferedBytes)
	}
	return m
}

// limiter returns one of a rate; nil: any.
func limiter(perS float64, burst int) *rate.Limiter {
	if perS == 0 {
		return nil
	}
	if burst == 0 {
		burst = int(math.Ceil(min(perS, math.MaxInt32)))
	}
	return rate.NewLimiter(rate.Limit(perS), burst)
}

// take lets one request in, until `done` of the meter, of whose bytes it counts as many as may come at once;
// or it says
// after how long to come again.
func (m *meter) take(now time.Time, bytes int64) (counted int, wait time.Duration, isIn bool) {
	if most := int64(m.limits.InFlight); most > 0 && m.inFlight.Add(1) > most {
		m.inFlight.Add(-1)
		return 0, time.Second, false
	}
	asked, wait := reserve(m.rate, now, 1)
	if wait > 0 {
		m.done()
		return 0, wait, false
	}
	if m.bytes != nil { // one at least: who owes has to wait
		counted = max(1, int(min(bytes, int64(m.bytes.Burst()))))
	}
	if _, wait := reserve(m.bytes, now, counted); wait > 0 {
		asked.CancelAt(now)
		m.done()
		return 0, wait, false
	}
	return counted, 0, true
}

// reserve takes from a limiter, or says for how long to wait, and takes nothing.
func reserve(from *rate.Limiter, now time.Time, count int) (*rate.Reservation, time.Duration) {
	if from == nil {
		return &rate.Reservation{}, 0
	}
	asked := from.ReserveN(now, count)
	if wait := asked.DelayFrom(now); wait > 0 || !asked.OK() {
		asked.CancelAt(now)
		return nil, max(wait, time.Millisecond)
	}
	return asked, 0
}

// charge counts bytes, for which the caller may owe time then, and returns how long.
func (m *meter) charge(now time.Time, bytes int) (owed time.Duration) {
	if m.bytes == nil {
		return 0
	}
	for burst := max(1, m.bytes.Burst()); bytes > 0; bytes -= burst {
		owed = m.bytes.ReserveN(now, min(bytes, burst)).DelayFrom(now)
	}
	return owed
}

// done ends a request that was admitted.
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

// meters are those of all callers: by the names that the file has, and of others as long as they are not too
// many.
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
	key := caller.at(address)
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

// at returns who a caller is to the meters: who is anonymous is its network.
func (c *Caller) at(address netip.Addr) who {
	key := who{name: c.Name}
	if c.Name == anonymousName {
		key.network = networkOf(address)
	}
	return key
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
