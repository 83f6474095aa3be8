package gateway

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/logging"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/upstream"
)

// running is a gateway that answers at url.
type running struct {
	*edge.Handler
	url     string
	address string
	log     *gatewaytest.Lines
	server  *http.Server
}

// configOf returns what a command line says.
func configOf(t *testing.T, args ...string) config.Config {
	t.Helper()
	cfg, err := config.Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// start runs a gateway for a command line, with the options changed.
func start(t *testing.T, change func(*config.Config), args ...string) *running {
	t.Helper()
	// A loaded machine does not keep heartbeats waiting for as long as that.
	cfg := configOf(t, append([]string{"--listen", "127.0.0.1:0", "--stall-timeout", "1m"}, args...)...)
	if change != nil {
		change(&cfg)
	}
	return startWith(t, cfg, connectTo(cfg))
}

// startWith runs a gateway whose upstreams are made by connect.
func startWith(t *testing.T, cfg config.Config, connect upstream.Connect) *running {
	t.Helper()
	text := &gatewaytest.Lines{}
	log := logging.New(text)
	stats := metrics.New()
	backends, err := upstream.NewPool(cfg, connect, log, stats)
	if err != nil {
		t.Fatal(err)
	}
	gate := gateFor(t, cfg, log, stats)
	if err := cfg.Trust.Add(gate.Said().TrustedProxies, gate.Said().Metadata); err != nil {
		t.Fatal(err)
	}
	handler, err := edge.NewHandler(cfg, log, backends, stats, gate)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := edge.Listen("listen", cfg.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	server := edge.NewServer(cfg, handler, log)
	if server.TLSConfig, err = config.LoadServerTLS(cfg.TLS, func(err error) { log.Error(err.Error()) }); err != nil {
		t.Fatal(err)
	}
	backends.Start()
	go func() { _ = serveOn(server, edge.NewGuard(listener, &cfg, stats), log) }()
	t.Cleanup(func() {
		_ = server.Close()
		backends.Close()
	})
	scheme := "http"
	if cfg.TLS.Cert != "" {
		scheme = "https"
	}
	address := listener.Addr().String()
	return &running{handler, scheme + "://" + address, address, text, server}
}

// startReady runs a gateway and waits until a backend serves.
func startReady(t *testing.T, args ...string) *running {
	t.Helper()
	g := start(t, nil, args...)
	g.waitUntilServing(t, 1)
	return g
}

func (r *running) waitUntilServing(t *testing.T, count int) {
	t.Helper()
	gatewaytest.WaitUntil(t, fmt.Sprintf("%d backends serve", count), func() bool {
		now := r.Pool.Candidates.Load()
		return now.IsReady && len(now.RPC) == count
	})
}

// reply is an answer that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

// response is the shape of every answer to an inference.
type response struct {
	ErrNo   int              `json:"err_no"`
	ErrMsg  string           `json:"err_msg"`
	Key     []string         `json:"key"`
	Value   []string         `json:"value"`
	Tensors []map[string]any `json:"tensors"`
}

func (r reply) response(t *testing.T) response {
	t.Helper()
	var got response
	decoder := json.NewDecoder(strings.NewReader(r.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil || got.Key == nil || got.Value == nil || got.Tensors == nil {
		t.Fatalf("not the shape of a Response: %d %s (%v)", r.status, r.body, err)
	}
	return got
}

// isRefusal checks an answer that is an error.
func (r reply) isRefusal(t *testing.T, status, code int, text string) {
	t.Helper()
	got := r.response(t)
	if r.status != status || got.ErrNo != code || !strings.Contains(got.ErrMsg, text) {
		t.Errorf("got %d, %+v; want %d, %d, %q", r.status, got, status, code, text)
	}
	if contentType := r.header.Get("Content-Type"); contentType != edge.JSONType {
		t.Errorf("content-type is %q", contentType)
	}
}

func (r *running) do(t *testing.T, request *http.Request) reply {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	return doWith(t, &http.Client{Transport: transport, Timeout: gatewaytest.Patience}, request)
}

func doWith(t *testing.T, client *http.Client, request *http.Request) reply {
	t.Helper()
	got, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{got.StatusCode, got.Header, string(body)}
}

// ask sends one request; header: name, value, name, value ...
func (r *running) ask(t *testing.T, method, path, body string, header ...string) reply {
	t.Helper()
	return r.do(t, newRequest(t, method, r.url+path, body, header...))
}

func newRequest(t *testing.T, method, url, body string, header ...string) *http.Request {
	t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(header); at += 2 {
		request.Header.Add(header[at], header[at+1])
	}
	return request
}

// infer posts a body to /svc/prediction.
func (r *running) post(t *testing.T, body string, header ...string) reply {
	t.Helper()
	return r.ask(t, http.MethodPost, "/svc/prediction", body, header...)
}

// raw sends bytes and returns the answer until the gateway closes the connection.
func (r *running) raw(t *testing.T, sent string) string {
	t.Helper()
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
	if _, err := io.WriteString(conn, sent); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("after %q: %v", got, err)
	}
	return string(got)
}

// gateFor returns the gate that a command line asks for.
func gateFor(t *testing.T, cfg config.Config, log *slog.Logger, stats *metrics.Stats) *access.Gate {
	t.Helper()
	gate, err := access.New(cfg.Access, log, stats.LetIn)
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

// rawTLS is raw over TLS with HTTP/1.1.
func (r *running) rawTLS(t *testing.T, trusted *authority, sent string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", r.address, &tls.Config{RootCAs: trusted.pool, ServerName: "backend.test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
	if _, err := io.WriteString(conn, sent); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("after %q: %v", got, err)
	}
	return string(got)
}
