package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestFlagsHaveDefaults(t *testing.T) {
	cfg := configOf(t, "--backend", "host:1")
	want := config{
		backends: cfg.backends, listen: ":8080", listenFD: noFD, maxMessageBytes: 256 << 20,
		slack: 250 * time.Millisecond, grace: 30 * time.Second, patience: time.Minute,
	}
	if len(cfg.backends) != 1 {
		t.Fatalf("backends: %v", cfg.backends)
	}
	cfg.backends, want.backends = nil, nil
	if got := cfg; got.listen != want.listen || got.listenFD != want.listenFD ||
		got.maxMessageBytes != want.maxMessageBytes || got.slack != want.slack || got.grace != want.grace ||
		got.patience != want.patience || got.timeout != 0 || got.h2c || got.hasParent || got.gzipMinBytes != 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFlagsAreRead(t *testing.T) {
	cfg := configOf(t, "-backend", "a:1/2", "--backend=unix:/r,/h", "--listen-fd", "3", "--parent",
		"--max-message-bytes", "1000", "--timeout", "2s", "--slack", "1ms", "--grace", "5s", "--h2c",
		"--gzip-min-bytes", "10", "--access-log-sample", "7", "--backend-metrics",
		"--trusted-proxy", "10.0.0.1", "--trusted-proxy", "fd00::/8")
	if len(cfg.backends) != 2 || cfg.listenFD != 3 || !cfg.hasParent || cfg.maxMessageBytes != 1000 ||
		cfg.timeout != 2*time.Second || cfg.slack != time.Millisecond || cfg.grace != 5*time.Second ||
		!cfg.trusts("10.0.0.1:5") || !cfg.trusts("[::ffff:10.0.0.1]:5") || !cfg.trusts("[fd00::1%eth0]:5") ||
		cfg.trusts("10.0.0.2:5") || cfg.trusts("") ||
		!cfg.h2c || cfg.gzipMinBytes != 10 || cfg.accessLogSample != 7 || !cfg.backendMetrics {
		t.Errorf("got %+v", cfg)
	}
}

func TestWrongUsageIsExplained(t *testing.T) {
	for args, text := range map[string]string{
		"":                            "no backend",
		"--backend a":                 "host:rpc_port",
		"--backend a:1 --backend a:1": "twice",
		"--backend a:1 more":          `unexpected argument "more"`,
		"--backend a:1 --no-such":     "no-such",
		"--backend a:1 --timeout 5":   "timeout",
		"--backend a:1 --timeout -5s": "must not be negative",
		"--backend a:1 --listen :1 --listen-fd 3":       "exclude each other",
		"--backend a:1 --listen-fd -3":                  "--listen-fd -3",
		"--backend a:1 --max-message-bytes 0":           "--max-message-bytes 0",
		"--backend a:1 --gzip-min-bytes -1":             "--gzip-min-bytes -1",
		"--backend a:1 --trusted-proxy x":               "no network",
		"--backend a:1 --tls-cert x":                    "--tls-key",
		"--backend a:1 --tls-client-ca x":               "needs --tls-cert",
		"--backend a:1 --backend-ca x":                  "need --backend-tls",
		"--backend a:1 --backend-tls --backend-key x":   "give both",
		"--backend a:1 --backend link:/r --backend-tls": "a link is not encrypted",
	} {
		var out, log bytes.Buffer
		if status := run(strings.Fields(args), &out, &log); status != exitUsage {
			t.Errorf("%q: exit status %d", args, status)
		}
		wantIn(t, log.String(), "ERROR ", text, "--help")
	}
}

func TestHelpAndVersionArePrinted(t *testing.T) {
	for argument, text := range map[string]string{"--help": "-backend-metrics", "-h": "-listen-fd", "--version": "pipeline-gateway " + version} {
		var out, log bytes.Buffer
		if status := run([]string{argument}, &out, &log); status != exitOK || log.Len() > 0 {
			t.Errorf("%s: exit status %d, %s", argument, status, log.String())
		}
		wantIn(t, out.String(), text)
	}
}

func TestWhatCannotServeSaysWhy(t *testing.T) {
	for args, text := range map[string]string{
		"--listen 127.0.0.1:99999":          "--listen 127.0.0.1:99999",
		"--listen-fd 0":                     "--listen-fd 0",
		"--tls-cert /no/c --tls-key /no/k":  "--tls-cert /no/c",
		"--backend-tls --backend-ca /no/ca": "--backend-ca",
	} {
		var out, log bytes.Buffer
		if status := run(append(strings.Fields(args), "--backend", "127.0.0.1:1"), &out, &log); status != exitFailed {
			t.Errorf("%q: exit status %d", args, status)
		}
		wantIn(t, log.String(), "ERROR ", text)
	}
}

func TestBackendsAreParsed(t *testing.T) {
	web := func(network, address string) *endpoint { return &endpoint{network, address} }
	for text, want := range map[string]backendAddress{
		"h:1":         {name: "h:1", host: "h", rpc: endpoint{"tcp", "h:1"}},
		"h:1/2":       {name: "h:1/2", host: "h", rpc: endpoint{"tcp", "h:1"}, http: web("tcp", "h:2")},
		"[::1]:1/2":   {name: "[::1]:1/2", host: "::1", rpc: endpoint{"tcp", "[::1]:1"}, http: web("tcp", "[::1]:2")},
		"unix:/r":     {name: "unix:/r", host: "localhost", rpc: endpoint{"unix", "/r"}},
		"unix:/r,/h":  {name: "unix:/r", host: "localhost", rpc: endpoint{"unix", "/r"}, http: web("unix", "/h")},
		"link:/r":     {name: "link:/r", host: "localhost", rpc: endpoint{"unix", "/r"}, isLink: true},
		"link:/r,/h":  {name: "link:/r", host: "localhost", rpc: endpoint{"unix", "/r"}, isLink: true, http: web("unix", "/h")},
		"10.0.0.1:80": {name: "10.0.0.1:80", host: "10.0.0.1", rpc: endpoint{"tcp", "10.0.0.1:80"}},
	} {
		got, err := parseBackend(text)
		if err != nil || got.name != want.name || got.host != want.host || got.rpc != want.rpc || got.isLink != want.isLink {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
		if (got.http == nil) != (want.http == nil) || (got.http != nil && *got.http != *want.http) {
			t.Errorf("%q: HTTP at %v, want %v", text, got.http, want.http)
		}
	}
	for _, text := range []string{"", "h", ":1", "h:", "h:0", "h:x", "h:65536", "h:1/", "h:1/x", "::1:2", "unix:", "unix:,h", "unix:/r,", "link:", "link:,h", "link:/r,", "h:1/2/3"} {
		if got, err := parseBackend(text); err == nil {
			t.Errorf("%q was taken: %+v", text, got)
		}
	}
}
