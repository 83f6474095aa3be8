package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pipeline/gateway/pipelinepb"
)

// child is a gateway as its parent sees it.
type child struct {
	process
	url     string
	log     *lines
	ended   chan error
	line    net.Conn // the parent's end of the life line
	signal  chan os.Signal
	tick    chan time.Time
	parents atomic.Int64 // what getppid says
}

// startChild runs `serve` for a listening socket that is inherited.
func startChild(t *testing.T, args ...string) *child {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	inherited, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	// The gateway closes the number that it was given: it gets one of its own.
	number, err := syscall.Dup(int(inherited.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_ = inherited.Close()
	ours, theirs := net.Pipe()
	c := &child{
		url: "http://" + listener.Addr().String(), log: &lines{}, ended: make(chan error, 1), line: ours,
		signal: make(chan os.Signal, 2), tick: make(chan time.Time),
	}
	c.process = process{c.signal, theirs, c.tick, func() int { return int(c.parents.Load()) }}
	cfg := configOf(t, append([]string{"--listen-fd", fmt.Sprint(number)}, args...)...)
	go func() { c.ended <- serve(cfg, newLogger(c.log), c.process) }()
	t.Cleanup(func() {
		_ = ours.Close()
		select {
		case c.signal <- os.Kill:
		default:
		}
	})
	return c
}

// waitUntilEnded returns what `serve` returned.
func (c *child) waitUntilEnded(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(testPatience):
		t.Fatalf("it did not end: %s", c.log)
		return nil
	}
}

func (c *child) readReady(t *testing.T) {
	t.Helper()
	word := make([]byte, len(readyWord))
	_ = c.line.SetReadDeadline(time.Now().Add(testPatience))
	if _, err := io.ReadFull(c.line, word); err != nil || string(word) != readyWord {
		t.Fatalf("%q, %v", word, err)
	}
}

// waiting is a backend whose answers wait for the test.
type waiting struct {
	*double
	entered chan struct{}
	release chan struct{}
}

func startWaiting(t *testing.T) *waiting {
	t.Helper()
	w := &waiting{entered: make(chan struct{}, 9), release: make(chan struct{})}
	w.double = startDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
		w.entered <- struct{}{}
		select {
		case <-w.release:
			return &pipelinepb.Response{ErrMsg: "late"}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, doubleOptions{})
	return w
}

// askLater posts a request whose answer, or error, comes as text.
func (c *child) askLater(t *testing.T) chan string {
	t.Helper()
	request := newRequest(t, "POST", c.url+"/svc/p", "{}")
	answered := make(chan string, 1)
	go func() {
		got, err := (&http.Client{Transport: &http.Transport{}}).Do(request)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer got.Body.Close()
		text, _ := io.ReadAll(got.Body)
		answered <- string(text)
	}()
	return answered
}

func (c *child) isStopping() bool { return strings.Contains(c.log.String(), "gateway stops: ") }

func TestTheReadyWordIsSaidOnceABackendServes(t *testing.T) {
	address := freeAddress(t)
	c := startChild(t, "--parent", "--backend", address, "--backend", startDouble(t, echo, doubleOptions{}).address)
	c.readReady(t)
	_ = c.line.Close()
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	wantIn(t, c.log.String(), "INFO gateway dev listens on 127.0.0.1:", "life line is closed")
}

func TestWithoutAParentNothingIsSaidOnStdin(t *testing.T) {
	c := startChild(t, "--backend", startDouble(t, echo, doubleOptions{}).address)
	waitUntil(t, "a backend serves", func() bool { return strings.Contains(c.log.String(), " serves") })
	_ = c.line.Close() // a stdin that ends is nobody's word either
	c.signal <- syscall.SIGINT
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	wantIn(t, c.log.String(), "gateway stops: interrupt")
}

func TestAParentThatIsAnotherOneIsGone(t *testing.T) {
	c := startChild(t, "--parent", "--backend", startDouble(t, echo, doubleOptions{}).address)
	c.readReady(t)
	c.tick <- time.Time{}
	c.tick <- time.Time{} // it has looked once, and stayed
	c.parents.Store(1)
	select {
	case c.tick <- time.Time{}:
	case <-time.After(testPatience):
		t.Fatal("it does not look")
	case err := <-c.ended: // it saw it with its last look
		c.ended <- err
	}
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	wantIn(t, c.log.String(), "the parent is gone")
}

func TestAStoppingGatewayAnswersWhatIsInFlight(t *testing.T) {
	backend := startWaiting(t)
	c := startChild(t, "--parent", "--backend", backend.address)
	c.readReady(t)
	answered := c.askLater(t)
	<-backend.entered
	c.signal <- syscall.SIGTERM
	waitUntil(t, "it refuses connections", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(backend.release)
	wantIn(t, <-answered, `"late"`)
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
}

func TestASecondSignalEndsTheWaiting(t *testing.T) {
	backend := startWaiting(t)
	c := startChild(t, "--parent", "--backend", backend.address)
	c.readReady(t)
	answered := c.askLater(t)
	<-backend.entered
	c.signal <- syscall.SIGTERM
	waitUntil(t, "it stops", c.isStopping)
	c.signal <- syscall.SIGTERM
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	wantIn(t, <-answered, "EOF")
	wantIn(t, c.log.String(), "they are broken off")
}

func TestTheGraceEnds(t *testing.T) {
	backend := startWaiting(t)
	c := startChild(t, "--parent", "--grace", "1ms", "--backend", backend.address)
	c.readReady(t)
	answered := c.askLater(t)
	<-backend.entered
	c.signal <- syscall.SIGTERM
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	wantIn(t, <-answered, "EOF")
}

func TestASocketThatIsNoListenerIsRefused(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	number, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	if _, err := listen(config{listenFD: number}); err == nil || !strings.Contains(err.Error(), "pass a listening socket") {
		t.Errorf("%v", err)
	}
}
