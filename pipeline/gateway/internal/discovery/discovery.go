// Package discovery finds backends in lists that change while the gateway runs.
package discovery

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
)

// source is one list of backends.
type source interface {
	// read returns the list as it is now. Where it fails the list from before stays; the error says which one
	// it is.
	read(ctx context.Context) ([]config.Backend, error)
	// interval is the time between two reads.
	interval() time.Duration
	// mustBeThere says whether a list that cannot be read is an error at the start.
	mustBeThere() bool
}

// Discovery puts all lists together. The fixed backends of the command line are always among them.
type Discovery struct {
	fixed   []config.Backend
	sources []source
	set     func([]config.Backend)
	log     *slog.Logger

	lock  sync.Mutex
	found [][]config.Backend // of each source
	known []bool             // the lists that have been read
}

// New returns the lists that a command line asks for; set receives all backends whenever they change.
func New(cfg config.Config, log *slog.Logger, set func([]config.Backend)) *Discovery {
	var sources []source
	if cfg.BackendsFile != "" {
		sources = append(sources, newFile(cfg.BackendsFile))
	}
	for _, each := range cfg.Lookups {
		sources = append(sources, &dns{Lookup: each, resolver: net.DefaultResolver, every: cfg.DNSInterval})
	}
	return newOf(cfg.Backends, sources, log, set)
}

func newOf(fixed []config.Backend, sources []source, log *slog.Logger, set func([]config.Backend)) *Discovery {
	count := len(sources)
	return &Discovery{
		fixed: fixed, sources: sources, set: set, log: log,
		found: make([][]config.Backend, count), known: make([]bool, count),
	}
}

// firstLook is the time that the lists have at the start, before callers are admitted.
const firstLook = time.Second

// Start reads each list once, and sets what is found. Its error is that of a list that has to be there.
func (d *Discovery) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	for at, each := range d.sources {
		now, err := each.read(ctx)
		switch {
		case err == nil:
			d.found[at], d.known[at] = now, true
		case each.mustBeThere():
			return err
		default:
			d.log.Warn(err.Error() + "; it is asked again")
		}
	}
	d.set(d.all())
	return nil
}

// Follow reads the lists again and again, until ctx ends.
func (d *Discovery) Follow(ctx context.Context) {
	var reading sync.WaitGroup
	for at := range d.sources {
		reading.Go(func() { d.follow(ctx, at) })
	}
	reading.Wait()
}

// follow reads one list. An error is logged once, not at each look.
func (d *Discovery) follow(ctx context.Context, at int) {
	said := ""
	for each := d.sources[at]; clock.Sleep(ctx, each.interval()); {
		now, err := each.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			said = ""
			d.take(at, now)
		} else if said != err.Error() {
			said = err.Error()
			d.log.Error("its list of backends is not changed: " + said)
		}
	}
}

// take replaces the backends if a list has changed.
func (d *Discovery) take(at int, now []config.Backend) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.known[at] && isSame(d.found[at], now) {
		return
	}
	d.found[at], d.known[at] = now, true
	d.set(d.all())
}

// all returns each backend once, in the order of the lists.
func (d *Discovery) all() []config.Backend {
	var all []config.Backend
	seen := map[string]bool{}
	for _, list := range append([][]config.Backend{d.fixed}, d.found...) {
		for _, each := range list {
			if !seen[each.Name] {
				seen[each.Name] = true
				all = append(all, each)
			}
		}
	}
	return all
}

// isSame says whether two lists name the same backends, in whatever order.
func isSame(one, other []config.Backend) bool {
	if len(one) != len(other) {
		return false
	}
	names := map[string]bool{}
	for _, each := range one {
		names[each.Name] = true
	}
	for _, each := range other {
		if !names[each.Name] {
			return false
		}
	}
	return true
}
