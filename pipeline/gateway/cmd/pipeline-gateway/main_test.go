package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/version"
)

func TestWrongUsageIsExplained(t *testing.T) {
	for args, text := range map[string]string{
		"":                            "no backend",
		"--backend a":                 "host:rpc_port",
		"--backend a:1 --backend a:1": "twice",
		"--backend a:1 more":          `unexpected argument "more"`,
		"--backend a:1 --no-such":     "no-such",
		"--backend a:1 --timeout 5":   "timeout",
		"--backend a:1 --timeout -5s": "must not be negative",
		"--backend a:1 --listen :1 --listen-fd 3":          "exclude each other",
		"--backend a:1 --listen-fd -3":                     "--listen-fd -3",
		"--backend a:1 --max-message-bytes 0":              "--max-message-bytes 0",
		"--backend a:1 --gzip-min-bytes -1":                "--gzip-min-bytes -1",
		"--backend a:1 --cors-origin x/y":                  "is not an origin",
		"--backend a:1 --cors-origin * --cors-credentials": "name origins, not *",
		"--backend a:1 --trusted-proxy x":                  "nor a network",
		"--backend a:1 --tls-cert x":                       "--tls-key",
		"--backend a:1 --tls-client-ca x":                  "needs --tls-cert",
		"--backend a:1 --backend-ca x":                     "need --backend-tls",
		"--backend a:1 --backend-tls --backend-key x":      "give both",
		"--backend a:1 --backend link:/r --backend-tls":    "a link is not encrypted",
	} {
		var out, log bytes.Buffer
		if status := run(strings.Fields(args), &out, &log); status != exitUsage {
			t.Errorf("%q: exit status %d", args, status)
		}
		gatewaytest.WantIn(t, log.String(), "ERROR ", text, "--help")
	}
}

func TestHelpAndVersionArePrinted(t *testing.T) {
	for argument, text := range map[string]string{"--help": "-backend-metrics", "-h": "-listen-fd", "--version": fmt.Sprintf("pipeline-gateway %s (link %d)\n", version.Version, frame.Version)} {
		var out, log bytes.Buffer
		if status := run([]string{argument}, &out, &log); status != exitOK || log.Len() > 0 {
			t.Errorf("%s: exit status %d, %s", argument, status, log.String())
		}
		gatewaytest.WantIn(t, out.String(), text)
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
		gatewaytest.WantIn(t, log.String(), "ERROR ", text)
	}
}
