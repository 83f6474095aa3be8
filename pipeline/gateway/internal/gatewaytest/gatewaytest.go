// Package gatewaytest plays servers and helps tests; no program has it.
package gatewaytest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/pipelinepb"
)

func Packed(t *testing.T, encoding, text string) string {
	t.Helper()
	var buffer bytes.Buffer
	var writer io.WriteCloser = gzip.NewWriter(&buffer)
	if encoding == "deflate" {
		writer = zlib.NewWriter(&buffer)
	}
	_, err := io.WriteString(writer, text)
	if err == nil {
		err = writer.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return buffer.String()
}

const Pair = `{"key":["a"],"value":["1"]}`

// Large answers with so many bytes.
func Large(size int) Answerer {
	text := strings.Repeat("x", size)
	return func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) { return ResponseOf(text), nil }
}

// Patience ends a test that waits for what does not come.
const Patience = time.Minute

type Answerer func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error)

// Echo answers with the pairs that it is sent.
func Echo(_ context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
	return &pipelinepb.Response{Key: request.Key, Value: request.Value, Tensors: request.Tensors}, nil
}

// StartWeb starts the HTTP port of a backend and returns its port.
func StartWeb(t *testing.T, handler http.Handler) string {
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

// StartUnixWeb starts an HTTP port on a Unix socket, and returns its path.
func StartUnixWeb(t *testing.T, handler http.Handler) string {
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

// Lines is a log that tests can read while it is written.
type Lines struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (l *Lines) Write(data []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.Write(data)
}

func (l *Lines) String() string {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.String()
}

// WaitUntil waits for a condition.
func WaitUntil(t *testing.T, what string, isMet func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !isMet(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for: %s", what)
		}
	}
}

// WantIn checks that a text contains others.
func WantIn(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, each := range wanted {
		if !strings.Contains(text, each) {
			t.Errorf("%q is not in %.2000q", each, text)
		}
	}
}

func IsRefused(t *testing.T, err error, status int, code failure.ErrNo, text string) {
	t.Helper()
	var got *failure.Error
	if !errors.As(err, &got) || got.Status != status || got.ErrNo != code || !strings.Contains(got.Text, text) {
		t.Errorf("got %v; want %d, %d, %q", err, status, code, text)
	}
}

// Soon returns what comes over a channel.
func Soon[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(Patience):
		t.Fatalf("timed out waiting for: %s", what)
		panic("unreachable")
	}
}

func RequestOf(text string) *pipelinepb.Request {
	return &pipelinepb.Request{Key: []string{"k"}, Value: []string{text}}
}

func ResponseOf(text string) *pipelinepb.Response {
	return &pipelinepb.Response{Key: []string{"k"}, Value: []string{text}}
}

// Same compares messages by their bytes: NaN does not equal itself.
func Same(one, other proto.Message) bool {
	options := proto.MarshalOptions{Deterministic: true}
	first, err := options.Marshal(one)
	second, otherErr := options.Marshal(other)
	return err == nil && otherErr == nil && bytes.Equal(first, second)
}
