package discovery

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/logging"
)

// zone is a resolver that answers as a test says.
type zone struct {
	addresses []string
	services  map[string][]*net.SRV

	lock    sync.Mutex
	failure error
}

// fail has it answer with an error from now on; nil: with none.
func (z *zone) fail(err error) {
	z.lock.Lock()
	defer z.lock.Unlock()
	z.failure = err
}

func (z *zone) LookupNetIP(context.Context, string, string) (found []netip.Addr, err error) {
	z.lock.Lock()
	defer z.lock.Unlock()
	for _, each := range z.addresses {
		found = append(found, netip.MustParseAddr(each))
	}
	return found, z.failure
}

func (z *zone) LookupSRV(_ context.Context, _, _, name string) (string, []*net.SRV, error) {
	return name, append([]*net.SRV{}, z.services[name]...), z.failure
}

// named returns a list of what a --backend names.
func named(t *testing.T, text string, z *zone) *dns {
	t.Helper()
	cfg, err := config.Parse([]string{"--backend", text})
	if err != nil || len(cfg.Lookups) != 1 {
		t.Fatal(cfg.Lookups, err)
	}
	return &dns{Lookup: cfg.Lookups[0], resolver: z, every: time.Second}
}

func TestEachAddressOfAHostIsABackend(t *testing.T) {
	z := &zone{addresses: []string{"10.0.0.2", "fd00::1", "::ffff:10.0.0.1", "10.0.0.1"}}
	found, err := named(t, "dns:///pods.example:18070/18071", z).read(context.Background())
	if got := namesOf(found); err != nil || got != "10.0.0.1:18070/18071 10.0.0.2:18070/18071 [fd00::1]:18070/18071" {
		t.Errorf("%s, %v", got, err)
	}
	if one := found[2]; one.Host != "pods.example" || one.RPC.Address != "[fd00::1]:18070" || one.HTTP.Address != "[fd00::1]:18071" {
		t.Errorf("%+v", one)
	}
	found, _ = named(t, "dns:///pods.example:18070", z).read(context.Background())
	if one := found[0]; one.Name != "10.0.0.1:18070" || one.HTTP != nil {
		t.Errorf("%+v", one)
	}
}

func TestServicesAreBackends(t *testing.T) {
	z := &zone{services: map[string][]*net.SRV{
		"_rpc._tcp.x":  {{Target: "b.x.", Port: 2, Priority: 1}, {Target: "a.x.", Port: 1, Priority: 1}, {Target: "c.x.", Port: 3, Priority: 2}},
		"_http._tcp.x": {{Target: "a.x.", Port: 11}},
	}}
	for text, want := range map[string]string{
		"srv:///_rpc._tcp.x":              "a.x:1 b.x:2",
		"srv:///_rpc._tcp.x/18071":        "a.x:1/18071 b.x:2/18071",
		"srv:///_rpc._tcp.x/_http._tcp.x": "a.x:1/11 b.x:2",
		"srv:///_none._tcp.x":             "",
	} {
		found, err := named(t, text, z).read(context.Background())
		if got := namesOf(found); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
		if len(found) > 0 && found[0].Host != "a.x" {
			t.Errorf("%+v", found[0])
		}
	}
}

func TestWhatIsNoNameIsRefused(t *testing.T) {
	for _, text := range []string{"dns:///h", "dns:///:1", "dns:///h:0", "dns:///unix:/s", "dns:///", "srv:///", "srv:////1", "srv:///a/", "srv:///a/b", "srv:///a/0"} {
		if cfg, err := config.Parse([]string{"--backend", text}); err == nil {
			t.Errorf("%s: %+v", text, cfg.Lookups)
		}
	}
}

func TestANameThatIsGoneForLongHasNoBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		z := &zone{addresses: []string{"10.0.0.1"}}
		told, log := &heard{}, &gatewaytest.Lines{}
		lists := newOf(nil, []source{named(t, "dns:///h:1", z)}, logging.New(log), told.set)
		if err := lists.Start(ctx); err != nil || told.last() != "10.0.0.1:1" {
			t.Fatalf("%s, %v", told.last(), err)
		}
		go lists.Follow(ctx)
		time.Sleep(time.Second / 2) // between two looks
		gone := &net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}
		for _, step := range []struct {
			failure error
			want    string
		}{
			{errors.New("SERVFAIL"), "10.0.0.1:1"}, {gone, "10.0.0.1:1"}, {gone, "10.0.0.1:1"}, {errors.New("SERVFAIL"), "10.0.0.1:1"},
			{gone, "10.0.0.1:1"}, {gone, "10.0.0.1:1"}, {gone, ""}, {gone, ""}, {nil, "10.0.0.1:1"},
		} {
			z.fail(step.failure)
			time.Sleep(time.Second)
			synctest.Wait()
			if told.last() != step.want {
				t.Errorf("%v: %q", step.failure, told.last())
			}
		}
		if !strings.Contains(log.String(), "its list of backends is not changed: --backend dns:///h:1: SERVFAIL") {
			t.Error(log)
		}
	})
}

func TestANameThatIsNotThereYetIsNoErrorAtTheStart(t *testing.T) {
	log := &gatewaytest.Lines{}
	z := &zone{failure: &net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}}
	lists := newOf(nil, []source{named(t, "dns:///h:1", z)}, logging.New(log), func([]config.Backend) {})
	if err := lists.Start(context.Background()); err != nil {
		t.Error(err)
	}
	gatewaytest.WantIn(t, log.String(), "WARNING --backend dns:///h:1: lookup h: no such host; it is asked again")
}
