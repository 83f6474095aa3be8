package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"pipeline/gateway/pipelinepb"
)

// testPatience ends a test that waits for what does not come.
const testPatience = time.Minute

type answerer func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error)

// double is a pipeline server's gRPC port.
type double struct {
	pipelinepb.UnimplementedPipelineServiceServer
	answer  answerer
	address string // as for --backend
	rpc     endpoint
	server  *grpc.Server
	health  *grpchealth.Server
	calls   atomic.Int64
}

func (d *double) Inference(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
	d.calls.Add(1)
	return d.answer(ctx, request)
}

// echo answers with the pairs that it is sent.
func echo(_ context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
	return &pipelinepb.Response{Key: request.Key, Value: request.Value, Tensors: request.Tensors}, nil
}

type doubleOptions struct {
	hasNoHealth bool
	isUnix      bool
	at          string // an address that is free again; "": any
	server      []grpc.ServerOption
}

// startDouble starts a gRPC server that serves.
func startDouble(t *testing.T, answer answerer, options doubleOptions) *double {
	t.Helper()
	d := &double{answer: answer, server: grpc.NewServer(options.server...), health: grpchealth.NewServer()}
	network, address := "tcp", "127.0.0.1:0"
	if options.isUnix {
		network, address = "unix", filepath.Join(t.TempDir(), "rpc")
	}
	if options.at != "" {
		address = options.at
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	d.rpc = endpoint{network, listener.Addr().String()}
	d.address = d.rpc.address
	if options.isUnix {
		d.address = unixScheme + d.address
	}
	pipelinepb.RegisterPipelineServiceServer(d.server, d)
	if !options.hasNoHealth {
		healthpb.RegisterHealthServer(d.server, d.health)
	}
	go func() { _ = d.server.Serve(listener) }()
	t.Cleanup(d.server.Stop)
	return d
}

// startWeb starts the HTTP port of a backend and returns its port.
func startWeb(t *testing.T, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// startUnixWeb starts an HTTP port on a Unix socket, and returns its path.
func startUnixWeb(t *testing.T, handler http.Handler) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return path
}

// lines is a log that tests can read while it is written.
type lines struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(data []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.Write(data)
}

func (l *lines) String() string {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.String()
}

// running is a gateway that answers at url.
type running struct {
	*gateway
	url     string
	address string
	log     *lines
	server  *http.Server
}

// configOf returns what a command line says.
func configOf(t *testing.T, args ...string) config {
	t.Helper()
	cfg, err := parseFlags(args)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// start runs a gateway for a command line, with the options changed.
func start(t *testing.T, change func(*config), args ...string) *running {
	t.Helper()
	// A loaded machine does not keep heartbeats waiting for as long as that.
	cfg := configOf(t, append([]string{"--listen", "127.0.0.1:0", "--stall-timeout", "1m"}, args...)...)
	if change != nil {
		change(&cfg)
	}
	text := &lines{}
	log := newLogger(text)
	stats := newStats()
	backends, err := newPool(cfg, log, stats)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := newGateway(cfg, log, backends, stats)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(cfg, handler, log)
	if server.TLSConfig, err = loadServerTLS(cfg.tls); err != nil {
		t.Fatal(err)
	}
	backends.start()
	go func() { _ = serveOn(server, newGuard(listener, &cfg, stats)) }()
	t.Cleanup(func() {
		_ = server.Close()
		backends.close()
	})
	scheme := "http"
	if cfg.tls.cert != "" {
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

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, isMet func() bool) {
	t.Helper()
	for end := time.Now().Add(testPatience); !isMet(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (r *running) waitUntilServing(t *testing.T, count int) {
	t.Helper()
	waitUntil(t, fmt.Sprintf("%d backends serve", count), func() bool {
		now := r.pool.candidates.Load()
		return now.isReady && len(now.rpc) == count
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
	if contentType := r.header.Get("Content-Type"); contentType != jsonType {
		t.Errorf("content-type is %q", contentType)
	}
}

func (r *running) do(t *testing.T, request *http.Request) reply {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	return doWith(t, &http.Client{Transport: transport, Timeout: testPatience}, request)
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

// raw sends bytes and returns all that comes back until the gateway hangs up.
func (r *running) raw(t *testing.T, sent string) string {
	t.Helper()
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testPatience))
	if _, err := io.WriteString(conn, sent); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("after %q: %v", got, err)
	}
	return string(got)
}

// wantIn checks that a text contains others.
func wantIn(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, each := range wanted {
		if !strings.Contains(text, each) {
			t.Errorf("%q is not in %.2000q", each, text)
		}
	}
}
