package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"pipeline/gateway/internal/config"
)

// mostMissing is how often in a row a name has to be unknown until there is no backend of it any more: its
// addresses may have new owners. Any other failure is DNS's own.
const mostMissing = 3

// resolver is net.Resolver, as far as it is asked.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// dns is the list that a name stands for. How long an answer is valid Go's resolver does not tell.
type dns struct {
	config.Lookup
	resolver resolver
	every    time.Duration
	missing  int // times in a row
}

func (d *dns) name() string { return "--backend " + d.Text }

func (d *dns) interval() time.Duration { return d.every }

func (*dns) mustBeThere() bool { return false }

// read looks the name up.
func (d *dns) read(ctx context.Context) ([]config.Backend, error) {
	find := d.services
	if d.Host != "" {
		find = d.addresses
	}
	found, err := find(ctx)
	var failed *net.DNSError
	if errors.As(err, &failed) && failed.IsNotFound {
		if d.missing++; d.missing >= mostMissing {
			return nil, nil
		}
	} else {
		d.missing = 0
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.name(), err)
	}
	return found, nil
}

// addresses returns a backend for each address of a host.
func (d *dns) addresses(ctx context.Context) ([]config.Backend, error) {
	all, err := d.resolver.LookupNetIP(ctx, "ip", d.Host)
	if err != nil {
		return nil, err
	}
	for at, each := range all {
		all[at] = each.Unmap()
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var found []config.Backend
	for _, each := range slices.Compact(all) {
		found = append(found, d.At(each.String(), d.RPCPort, d.HTTPPort))
	}
	return found, nil
}

// services returns a backend for each SRV record of the first priority.
func (d *dns) services(ctx context.Context) ([]config.Backend, error) {
	all, err := d.firstOf(ctx, d.RPCName)
	if err != nil {
		return nil, err
	}
	web := map[string]string{}
	if d.HTTPName != "" {
		ports, err := d.firstOf(ctx, d.HTTPName)
		if err != nil {
			return nil, err
		}
		for _, each := range ports {
			web[each.Target] = strconv.Itoa(int(each.Port))
		}
	}
	var found []config.Backend
	for _, each := range all {
		httpPort := d.HTTPPort
		if d.HTTPName != "" {
			httpPort = web[each.Target]
		}
		found = append(found, d.At(strings.TrimSuffix(each.Target, "."), strconv.Itoa(int(each.Port)), httpPort))
	}
	slices.SortFunc(found, func(one, other config.Backend) int { return strings.Compare(one.Name, other.Name) })
	return found, nil
}

// firstOf returns the SRV records of a name that are of the first priority.
func (d *dns) firstOf(ctx context.Context, name string) ([]*net.SRV, error) {
	_, all, err := d.resolver.LookupSRV(ctx, "", "", name)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	first := slices.MinFunc(all, func(one, other *net.SRV) int { return int(one.Priority) - int(other.Priority) }).Priority
	return slices.DeleteFunc(all, func(each *net.SRV) bool { return each.Priority != first }), nil
}
