package gateway

import (
	"bufio"
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

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/logging"
	"pipeline/gateway/internal/sockets"
	"pipeline/gateway/pipelinepb"
)

// child is a gateway as its parent sees it.
type child struct {
	process
	url     string
	log     *gatewaytest.Lines
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
		url: "http://" + listener.Addr().String(), log: &gatewaytest.Lines{}, ended: make(chan error, 1), line: ours,
		signal: make(chan os.Signal, 2), tick: make(chan time.Time),
	}
	c.process = process{c.signal, theirs, c.tick, func() int { return int(c.parents.Load()) }}
	cfg := configOf(t, append([]string{"--listen-fd", fmt.Sprint(number)}, args...)...)
	go func() { c.ended <- Serve(cfg, logging.New(c.log), c.process) }()
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
	case <-time.After(gatewaytest.Patience):
		t.Fatalf("it did not end: %s", c.log)
		return nil
	}
}

func (c *child) readReady(t *testing.T) {
	t.Helper()
	word := make([]byte, len(readyWord))
	_ = c.line.SetReadDeadline(time.Now().Add(gatewaytest.Patience))
	if _, err := io.ReadFull(c.line, word); err != nil || string(word) != readyWord {
		t.Fatalf("%q, %v", word, err)
	}
}

// waiting is a backend whose answers wait for the test.
type waiting struct {
	*gatewaytest.Double
	entered chan struct{}
	release chan struct{}
}

func startWaiting(t *testing.T) *waiting {
	t.Helper()
	w := &waiting{entered: make(chan struct{}, 9), release: make(chan struct{})}
	w.Double = gatewaytest.StartDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
		w.entered <- struct{}{}
		select {
		case <-w.release:
			return &pipelinepb.Response{ErrMsg: "late"}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, gatewaytest.DoubleOptions{})
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
	c := startChild(t, "--parent", "--backend", address, "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	c.readReady(t)
	_ = c.line.Close()
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	gatewaytest.WantIn(t, c.log.String(), "INFO gateway dev listens on 127.0.0.1:", "life line is closed")
}

func TestWithoutAParentNothingIsSaidOnStdin(t *testing.T) {
	c := startChild(t, "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	gatewaytest.WaitUntil(t, "a backend serves", func() bool { return strings.Contains(c.log.String(), " serves") })
	_ = c.line.Close() // without --parent the end of stdin has no effect
	c.signal <- syscall.SIGINT
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	gatewaytest.WantIn(t, c.log.String(), "gateway stops: interrupt")
}

func TestAParentThatIsAnotherOneIsGone(t *testing.T) {
	c := startChild(t, "--parent", "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	c.readReady(t)
	c.tick <- time.Time{}
	c.tick <- time.Time{} // it has looked once, and stayed
	c.parents.Store(1)
	select {
	case c.tick <- time.Time{}:
	case <-time.After(gatewaytest.Patience):
		t.Fatal("it does not look")
	case err := <-c.ended: // it saw it with its last look
		c.ended <- err
	}
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	gatewaytest.WantIn(t, c.log.String(), "the parent is gone")
}

func TestAStoppingGatewayAnswersWhatIsInFlight(t *testing.T) {
	backend := startWaiting(t)
	c := startChild(t, "--parent", "--backend", backend.Address)
	c.readReady(t)
	answered := c.askLater(t)
	<-backend.entered
	c.signal <- syscall.SIGTERM
	gatewaytest.WaitUntil(t, "it refuses connections", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(backend.release)
	gatewaytest.WantIn(t, <-answered, `"late"`)
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
}

func TestASecondSignalEndsTheWaiting(t *testing.T) {
	backend := startWaiting(t)
	c := startChild(t, "--parent", "--backend", backend.Address)
	c.readReady(t)
	answered := c.askLater(t)
	<-backend.entered
	c.signal <- syscall.SIGTERM
	gatewaytest.WaitUntil(t, "it stops", c.isStopping)
	c.signal <- syscall.SIGTERM
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	gatewaytest.WantIn(t, <-answered, "EOF")
	gatewaytest.WantIn(t, c.log.String(), "they are broken off")
}

func TestTheGraceEnds(t *testing.T) {
	backend := startWaiting(t)
	c := startChild(t, "--parent", "--grace", "1ms", "--backend", backend.Address)
	c.readReady(t)
	answered := c.askLater(t)
	<-backend.entered
	c.signal <- syscall.SIGTERM
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	gatewaytest.WantIn(t, <-answered, "EOF")
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
	if _, err := edge.Listen("listen", config.Socket{FD: number}); err == nil || !strings.Contains(err.Error(), "pass a listening socket") {
		t.Errorf("%v", err)
	}
}

// keptCaller is a connection that a caller keeps.
type keptCaller struct {
	net.Conn
	source *bufio.Reader
}

func (c *child) connect(t *testing.T) *keptCaller {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
	return &keptCaller{conn, bufio.NewReader(conn)}
}

// ask returns the status of an answer, and whether it is the last one.
func (k *keptCaller) ask(t *testing.T, request string) (status int, isLast bool) {
	t.Helper()
	_, _ = io.WriteString(k, request+" HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
	answer, err := http.ReadResponse(k.source, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Close
}

func TestAStoppingGatewaySaysNotReadyFirstAndServesOn(t *testing.T) {
	web := gatewaytest.StartWeb(t, http.HandlerFunc(told))
	c := startChild(t, "--parent", "--drain-delay", "1m", "--h2c", "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address+"/"+web)
	c.readReady(t)
	kept, idle, h2 := c.connect(t), c.connect(t), startH2(t, strings.TrimPrefix(c.url, "http://"))
	if status, isLast := kept.ask(t, "POST /svc/p"); status != 200 || isLast {
		t.Errorf("before: %d, %v", status, isLast)
	}
	if status, isLast := idle.ask(t, "GET /health/ready"); status != 200 || isLast {
		t.Errorf("before: %d, %v", status, isLast)
	}
	c.signal <- syscall.SIGTERM
	gatewaytest.WaitUntil(t, "it stops", c.isStopping)
	for request, want := range map[string]int{"GET /health/ready": 503, "GET /health/live": 200, "POST /svc/p": 200, "POST /v2": 418} {
		if status, isLast := c.connect(t).ask(t, request); status != want || !isLast {
			t.Errorf("%s: %d, %v", request, status, isLast)
		}
	}
	if status, isLast := kept.ask(t, "POST /svc/p"); status != 200 || !isLast {
		t.Errorf("on a connection that was kept: %d, %v", status, isLast)
	}
	h2.ask(1, gatewaytest.Pair)
	h2.hear(func(frame http2.Frame) bool {
		_, isGoAway := frame.(*http2.GoAwayFrame)
		return isGoAway
	})
	c.signal <- syscall.SIGTERM
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://")); err == nil {
		t.Error("it listens still")
	}
	if _, err := idle.source.ReadByte(); err != io.EOF {
		t.Errorf("a connection that was idle: %v", err)
	}
}

func TestTheEndOfTheParentEndsTheDelay(t *testing.T) {
	c := startChild(t, "--parent", "--drain-delay", "1m", "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	c.readReady(t)
	c.signal <- syscall.SIGTERM
	gatewaytest.WaitUntil(t, "it stops", c.isStopping)
	_ = c.line.Close()
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
}

func TestConnectionsThatNobodyHasTakenAreServed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	waiting := make([]net.Conn, 20)
	for at := range waiting { // the system makes them, and nobody takes them
		if waiting[at], err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer waiting[at].Close()
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
	sockets.TakeLast(listener)
	_ = listener.Close()
	for _, each := range waiting {
		_ = each.SetDeadline(time.Now().Add(gatewaytest.Patience))
		if got, err := io.ReadAll(each); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

func TestCallersOfGRPCWaitForAServerThatStarts(t *testing.T) {
	path := t.TempDir() + "/0.link"
	c := startChild(t, "--grpc-listen", "127.0.0.1:0", "--backend", "link:"+path)
	gatewaytest.WaitUntil(t, "it knows that nobody is there", func() bool {
		return strings.Contains(c.log.String(), "gets no requests") && strings.Contains(c.log.String(), " listens on ")
	})
	_, text, _ := strings.Cut(c.log.String(), " and ")
	address, _, _ := strings.Cut(text, ",")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended := make(chan codes.Code, 1)
	go func() {
		ended <- status.Code(conn.Invoke(t.Context(), "/a.B/C", &pipelinepb.Request{}, &pipelinepb.Response{}, grpc.WaitForReady(true)))
	}()
	gatewaytest.StartLinkServer(t, path).Peer(t, 0)
	if code := gatewaytest.Soon(t, "an answer", ended); code != codes.Unimplemented {
		t.Errorf("%v: a waiting caller got the error that there is no backend", code)
	}
}
