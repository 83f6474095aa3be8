package config

import (
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/sockets"
)

func TestFlagsHaveDefaults(t *testing.T) {
	cfg := flagsOf(t, "--backend", "host:1")
	want := Config{
		Backends: cfg.Backends, HTTP: Socket{":8080", NoFD}, GRPC: Socket{"", NoFD}, MaxMessageBytes: 256 << 20,
		Slack: 250 * time.Millisecond, Grace: 30 * time.Second, Patience: time.Minute,
	}
	if len(cfg.Backends) != 1 {
		t.Fatalf("backends: %v", cfg.Backends)
	}
	cfg.Backends, want.Backends = nil, nil
	if got := cfg; got.HTTP != want.HTTP || got.GRPC != want.GRPC ||
		got.MaxMessageBytes != want.MaxMessageBytes || got.Slack != want.Slack || got.Grace != want.Grace ||
		got.Patience != want.Patience || got.Timeout != 0 || got.H2C || got.HasParent || got.GzipMinBytes != 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFlagsAreRead(t *testing.T) {
	cfg := flagsOf(t, "-backend", "a:1/2", "--backend=unix:/r,/h", "--listen-fd", "3", "--parent",
		"--max-message-bytes", "1000", "--timeout", "2s", "--slack", "1ms", "--grace", "5s", "--h2c",
		"--gzip-min-bytes", "10", "--access-log-sample", "7", "--backend-metrics", "--connected-is-up",
		"--trusted-proxy", "10.0.0.1", "--trusted-proxy", "fd00::/8")
	if len(cfg.Backends) != 2 || cfg.HTTP.FD != 3 || !cfg.HasParent || cfg.MaxMessageBytes != 1000 ||
		cfg.Timeout != 2*time.Second || cfg.Slack != time.Millisecond || cfg.Grace != 5*time.Second ||
		!cfg.Trust.Proxy("10.0.0.1:5") || !cfg.Trust.Proxy("[::ffff:10.0.0.1]:5") || !cfg.Trust.Proxy("[fd00::1%eth0]:5") ||
		cfg.Trust.Proxy("10.0.0.2:5") || cfg.Trust.Proxy("") ||
		!cfg.H2C || !cfg.ConnectedIsUp || cfg.GzipMinBytes != 10 || cfg.AccessLogSample != 7 || !cfg.BackendMetrics {
		t.Errorf("got %+v", cfg)
	}
}

func TestBackendsAreParsed(t *testing.T) {
	web := func(network, address string) *sockets.Endpoint {
		return &sockets.Endpoint{Network: network, Address: address}
	}
	for text, want := range map[string]Backend{
		"h:1":         {Name: "h:1", Host: "h", RPC: sockets.Endpoint{Network: "tcp", Address: "h:1"}},
		"h:1/2":       {Name: "h:1/2", Host: "h", RPC: sockets.Endpoint{Network: "tcp", Address: "h:1"}, HTTP: web("tcp", "h:2")},
		"[::1]:1/2":   {Name: "[::1]:1/2", Host: "::1", RPC: sockets.Endpoint{Network: "tcp", Address: "[::1]:1"}, HTTP: web("tcp", "[::1]:2")},
		"unix:/r":     {Name: "unix:/r", Host: "localhost", RPC: sockets.Endpoint{Network: "unix", Address: "/r"}},
		"unix:/r,/h":  {Name: "unix:/r", Host: "localhost", RPC: sockets.Endpoint{Network: "unix", Address: "/r"}, HTTP: web("unix", "/h")},
		"link:/r":     {Name: "link:/r", Host: "localhost", RPC: sockets.Endpoint{Network: "unix", Address: "/r"}, IsLink: true},
		"link:/r,/h":  {Name: "link:/r", Host: "localhost", RPC: sockets.Endpoint{Network: "unix", Address: "/r"}, IsLink: true, HTTP: web("unix", "/h")},
		"10.0.0.1:80": {Name: "10.0.0.1:80", Host: "10.0.0.1", RPC: sockets.Endpoint{Network: "tcp", Address: "10.0.0.1:80"}},
	} {
		got, err := parseBackend(text)
		if err != nil || got.Name != want.Name || got.Host != want.Host || got.RPC != want.RPC || got.IsLink != want.IsLink {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
		if (got.HTTP == nil) != (want.HTTP == nil) || (got.HTTP != nil && *got.HTTP != *want.HTTP) {
			t.Errorf("%q: HTTP at %v, want %v", text, got.HTTP, want.HTTP)
		}
	}
	for _, text := range []string{"", "h", ":1", "h:", "h:0", "h:x", "h:65536", "h:1/", "h:1/x", "::1:2", "unix:", "unix:,h", "unix:/r,", "link:", "link:,h", "link:/r,", "h:1/2/3"} {
		if got, err := parseBackend(text); err == nil {
			t.Errorf("%q was taken: %+v", text, got)
		}
	}
}

// flagsOf returns what a command line says.
func flagsOf(t *testing.T, args ...string) Config {
	t.Helper()
	cfg, err := Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestBalancingIsChecked(t *testing.T) {
	for _, args := range [][]string{
		{"--policy", "random"}, {"--health-interval", "-1s"}, {"--health-timeout", "0"}, {"--unhealthy-after", "0"}, {"--healthy-after", "0"},
		{"--eject-after", "-1"}, {"--eject-time", "0"}, {"--eject-longest", "1s"}, {"--retry-share", "1.1"}, {"--retry-share", "-1"},
		{"--retry-rate", "-1"}, {"--hedge-after", "-1s"},
	} {
		if _, err := Parse(append(args, "--backend", "h:1")); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestCallersMaySayWhatTheGatewayItselfReads(t *testing.T) {
	cfg := flagsOf(t, "--backend", "h:1", "--allow-metadata", "x-user")
	for _, name := range []string{"pipeline-idempotent", "pipeline-sequence-id", "pipeline-timeout", "x-user"} {
		if !cfg.Trust.Allows(name) {
			t.Errorf("%s is not allowed", name)
		}
	}
	if cfg.Trust.Allows("x-other") {
		t.Error("anything is allowed")
	}
}
