package grpcedge

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/memory"
)

const (
	ask    = "/test.Service/Ask"
	stream = gatewaytest.LinkStream
	limit  = 100_000
)

// fixed are links that do not change.
type fixed []*link.Client

func (f fixed) Links() []*link.Client { return f }

// bench is an edge before a played server, and a caller.
type bench struct {
	edge   *Server
	server *gatewaytest.LinkServer
	peer   *gatewaytest.LinkPeer
	conn   *grpc.ClientConn
	codes  chan codes.Code // of the calls that are over
}

// greeting is what the played server says.
func greeting() frame.Greeting {
	return frame.Greeting{
		Version: frame.Version,
		Limits:  frame.Limits{CallCredit: frame.CallCredit, StreamCredit: frame.StreamCredit},
		Methods: []frame.Entry{{ID: 1, Name: ask}, {ID: 2, Name: stream, IsStream: true}},
	}
}

// start runs an edge; change may change its configuration.
func start(t *testing.T, said frame.Greeting, change func(*Config, *fixed)) *bench {
	t.Helper()
	b := &bench{server: gatewaytest.StartLinkServer(t, ""), codes: make(chan codes.Code, 1024)}
	client, states := clientOf(t, b.server.Path)
	b.peer = gatewaytest.Soon(t, "a connection", b.server.Peers)
	b.peer.Meet(said, true)
	for gatewaytest.Soon(t, "a server that serves", states).Phase != link.Serving {
	}
	links := fixed{client}
	config := Config{
		Services: []string{"test.Service"}, MaxMessageBytes: limit, MaxConnections: 8, HandshakeTimeout: time.Minute,
		Budget:  memory.NewBudget(memory.LeastBufferedBytes),
		Observe: func(_ string, code codes.Code, _ time.Duration) { b.codes <- code },
	}
	if change != nil {
		change(&config, &links)
	}
	b.edge = New(config, links)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = b.edge.Serve(listener) }()
	b.conn, err = grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.conn.Close()
		over, cancel := context.WithCancel(context.Background())
		cancel()
		b.edge.Stop(over)
	})
	return b
}

// clientOf returns a client of the server at a path, which need not be there.
func clientOf(t *testing.T, path string) (*link.Client, <-chan link.State) {
	t.Helper()
	client := link.New(link.Config{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		Stall: time.Minute,
	})
	ctx, cancel := context.WithCancel(context.Background())
	states, ended := make(chan link.State, 64), make(chan struct{})
	go func() {
		client.Watch(ctx, func(now link.State) { states <- now })
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return client, states
}

// heard is how a call ended.
type heard struct {
	code     codes.Code
	text     string
	answer   string
	trailers metadata.MD
}

// call asks in a goroutine of its own.
func (b *bench) call(ctx context.Context, method, message string, options ...grpc.CallOption) <-chan heard {
	ended := make(chan heard, 1)
	go func() {
		var got asked
		var trailers metadata.MD
		err := b.conn.Invoke(ctx, method, &answer{mem.BufferSlice{mem.SliceBuffer(message)}}, &got, append(options, grpc.Trailer(&trailers))...)
		found := heard{code: status.Code(err), text: status.Convert(err).Message(), trailers: trailers}
		if err == nil {
			found.answer = string(got.data())
			got.free()
		}
		ended <- found
	}()
	return ended
}

// wants fails unless a call has ended so.
func (h heard) wants(t *testing.T, code codes.Code, text string) {
	t.Helper()
	if h.code != code || h.text != text {
		t.Fatalf("%v %q, not %v %q", h.code, h.text, code, text)
	}
}
