package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registered
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/grpcedge"
	"pipeline/gateway/internal/memory"
)

const (
	unaryMethod  = "/inference.GRPCInferenceService/ModelInfer"
	streamMethod = "/inference.GRPCInferenceService/ModelStreamInfer"
)

// texts has messages be texts.
type texts struct{}

func (texts) Name() string { return "proto" }

func (texts) Marshal(value any) (mem.BufferSlice, error) {
	if text, isText := value.(*string); isText {
		return mem.BufferSlice{mem.SliceBuffer(*text)}, nil
	}
	return nil, errors.New("no text")
}

func (texts) Unmarshal(data mem.BufferSlice, value any) error {
	*value.(*string) = string(data.Materialize())
	return nil
}

// elsewhere is a server of any method, which answers as a test says.
type elsewhere struct {
	address string
	server  *grpc.Server
	health  *grpchealth.Server
	calls   atomic.Int64
	heard   atomic.Pointer[metadata.MD] // of the last call
}

// mixed has texts be texts, and all else protobuf.
type mixed struct{ encoding.CodecV2 }

func newMixed() encoding.CodecV2 { return mixed{encoding.GetCodecV2("proto")} }

func (m mixed) Marshal(value any) (mem.BufferSlice, error) {
	if _, isText := value.(*string); isText {
		return texts{}.Marshal(value)
	}
	return m.CodecV2.Marshal(value)
}

func (m mixed) Unmarshal(data mem.BufferSlice, value any) error {
	if _, isText := value.(*string); isText {
		return texts{}.Unmarshal(data, value)
	}
	return m.CodecV2.Unmarshal(data, value)
}

func startElsewhere(t *testing.T, handle grpc.StreamHandler) *elsewhere {
	t.Helper()
	e := &elsewhere{health: grpchealth.NewServer()}
	e.server = grpc.NewServer(grpc.ForceServerCodecV2(newMixed()), grpc.UnknownServiceHandler(func(service any, stream grpc.ServerStream) error {
		e.calls.Add(1)
		told, _ := metadata.FromIncomingContext(stream.Context())
		e.heard.Store(&told)
		return handle(service, stream)
	}))
	healthpb.RegisterHealthServer(e.server, e.health)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.address = listener.Addr().String()
	go func() { _ = e.server.Serve(listener) }()
	t.Cleanup(e.server.Stop)
	return e
}

// echoes answers each message with itself.
func echoes(_ any, stream grpc.ServerStream) error {
	_ = stream.SetHeader(metadata.Pairs("x-head", "1"))
	stream.SetTrailer(metadata.Pairs("x-tail", "2"))
	for {
		var text string
		if err := stream.RecvMsg(&text); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if strings.HasPrefix(text, "fail") {
			return status.Error(codes.InvalidArgument, text)
		}
		if err := stream.SendMsg(&text); err != nil {
			return err
		}
	}
}

// before is a gateway's gRPC before servers elsewhere, and a caller.
type before struct {
	*running
	edge *grpcedge.Server
	conn *grpc.ClientConn
}

func startBefore(t *testing.T, args ...string) *before {
	t.Helper()
	g := start(t, nil, args...)
	edge := grpcedge.New(grpcedge.Config{
		Services: services, MaxMessageBytes: 1 << 20, MaxConnections: 8, HandshakeTimeout: time.Minute,
		Budget: memory.NewBudget(memory.LeastBufferedBytes), Remote: g.Pool, FindSteps: g.Pool.IsSticky(),
		Observe: func(string, codes.Code, time.Duration) {},
	}, g.Pool)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = edge.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(texts{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		over, cancel := context.WithCancel(context.Background())
		cancel()
		edge.Stop(over)
	})
	return &before{g, edge, conn}
}

// call makes a unary call.
func (b *before) call(t *testing.T, method, text string, told ...string) (answer string, header, trailer metadata.MD, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), gatewaytest.Patience)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, told...)
	err = b.conn.Invoke(ctx, method, &text, &answer, grpc.Header(&header), grpc.Trailer(&trailer))
	return answer, header, trailer, err
}

func TestACallOfAnyMethodIsPassedOn(t *testing.T) {
	server := startElsewhere(t, echoes)
	b := startBefore(t, "--backend", server.address)
	b.waitUntilServing(t, 1)
	for _, method := range []string{unaryMethod, "/any.Service/Method"} {
		long := strings.Repeat("x", 300_000)
		answer, header, trailer, err := b.call(t, method, long, "x-user", "me", "x-forwarded-for", "1.2.3.4", "pipeline-idempotent", "1")
		if err != nil || answer != long || header.Get("x-head")[0] != "1" || trailer.Get("x-tail")[0] != "2" {
			t.Errorf("%s: %.20s, %v, %v, %v", method, answer, header, trailer, err)
		}
		told := *server.heard.Load()
		if told.Get("x-user")[0] != "me" || told.Get("x-forwarded-for")[0] != "127.0.0.1" || len(told.Get("pipeline-idempotent")) != 0 {
			t.Errorf("%v", told)
		}
		_, _, trailer, err = b.call(t, method, "fail so")
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "fail so" || trailer.Get("x-tail")[0] != "2" {
			t.Errorf("%s: %v, %v", method, err, trailer)
		}
	}
}

func TestCallsGoRoundAndStreamsStay(t *testing.T) {
	one, other := startElsewhere(t, echoes), startElsewhere(t, echoes)
	b := startBefore(t, "--backend", one.address, "--backend", other.address)
	b.waitUntilServing(t, 2)
	for range 4 {
		if _, _, _, err := b.call(t, unaryMethod, "x"); err != nil {
			t.Error(err)
		}
	}
	stream, err := b.conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a", "b", "c"} {
		var got string
		if err := errors.Join(stream.SendMsg(&text), stream.RecvMsg(&got)); err != nil || got != text {
			t.Errorf("%s, %v", got, err)
		}
	}
	if one.calls.Load()+other.calls.Load() != 5 || one.calls.Load() < 2 || other.calls.Load() < 2 {
		t.Errorf("%d and %d calls", one.calls.Load(), other.calls.Load())
	}
	pending := func() (all int64) {
		for _, each := range b.Pool.Backends() {
			all += each.Pending()
		}
		return all
	}
	if pending() != 1 {
		t.Errorf("%d calls are pending", pending())
	}
	_ = stream.CloseSend()
	if err := stream.RecvMsg(new(string)); !errors.Is(err, io.EOF) || stream.Trailer().Get("x-tail")[0] != "2" {
		t.Errorf("%v, %v", err, stream.Trailer())
	}
	gatewaytest.WaitUntil(t, "it is over", func() bool { return pending() == 0 })
}

func TestACallerThatLeavesAStreamEndsItThere(t *testing.T) {
	left := make(chan struct{})
	server := startElsewhere(t, func(_ any, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		close(left)
		return nil
	})
	b := startBefore(t, "--backend", server.address)
	b.waitUntilServing(t, 1)
	ctx, leave := context.WithCancel(context.Background())
	stream, err := b.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	text := "a"
	_ = stream.SendMsg(&text)
	gatewaytest.WaitUntil(t, "it is there", func() bool { return server.calls.Load() == 1 })
	leave()
	gatewaytest.Soon(t, "its end", left)
}

func TestAStopLetsAStreamEndItsAnswers(t *testing.T) {
	server := startElsewhere(t, echoes)
	b := startBefore(t, "--backend", server.address)
	b.waitUntilServing(t, 1)
	stream, err := b.conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	text, got := "a", ""
	if err := errors.Join(stream.SendMsg(&text), stream.RecvMsg(&got)); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan bool, 1)
	go func() { stopped <- b.edge.Stop(context.Background()) }()
	if err := stream.RecvMsg(&got); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if !gatewaytest.Soon(t, "the end", stopped) {
		t.Error("it was broken off")
	}
}

func TestWithoutAServerACallerOfGRPCIsToldSo(t *testing.T) {
	b := startBefore(t, "--backend", freeAddress(t))
	for _, method := range []string{unaryMethod, streamMethod} {
		_, _, trailer, err := b.call(t, method, "x")
		if status.Code(err) != codes.Unavailable || trailer.Get("pipeline-err-no")[0] != "3001" {
			t.Errorf("%v, %v", err, trailer)
		}
	}
}

func TestACallGoesToAnotherServerIfItNeverLeftOrIsSafe(t *testing.T) {
	var servers [2]*elsewhere
	for at := range servers {
		servers[at] = startElsewhere(t, func(service any, stream grpc.ServerStream) error {
			if at == 0 {
				return status.Error(codes.Unavailable, "away")
			}
			return echoes(service, stream)
		})
	}
	b := startBefore(t, "--eject-after", "0", "--backend", servers[0].address, "--backend", servers[1].address)
	b.waitUntilServing(t, 2)
	failed := 0
	for range 4 {
		if _, _, _, err := b.call(t, unaryMethod, "x"); err != nil {
			failed++
		}
	}
	for range 4 {
		if answer, _, _, err := b.call(t, unaryMethod, "x", "pipeline-idempotent", "1"); err != nil || answer != "x" {
			t.Error(err)
		}
	}
	if failed != 2 {
		t.Errorf("%d of 4 that may have been begun failed, not those of one server", failed)
	}
	both := b.Pool.Candidates.Load()
	servers[0].server.Stop()
	b.waitUntilServing(t, 1)
	b.Pool.Candidates.Store(both) // as it is for a moment after a backend is gone
	for range 4 {
		if _, _, _, err := b.call(t, unaryMethod, "x"); err != nil {
			t.Error(err)
		}
	}
}

func TestMessagesHaveALimitInBothDirections(t *testing.T) {
	server := startElsewhere(t, func(_ any, stream grpc.ServerStream) error {
		var text string
		if err := stream.RecvMsg(&text); err != nil {
			return err
		}
		text = strings.Repeat("x", 1<<20+1)
		return stream.SendMsg(&text)
	})
	b := startBefore(t, "--backend", server.address)
	b.waitUntilServing(t, 1)
	for _, method := range []string{unaryMethod, streamMethod} {
		if _, _, _, err := b.call(t, method, "x"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("an answer: %v", err)
		}
		if _, _, _, err := b.call(t, method, strings.Repeat("x", 1<<20+1)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a request: %v", err)
		}
	}
}

// inferOf returns a ModelInferRequest of a sequence.
func inferOf(id uint64) string {
	number := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), id) // int64_param
	entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "sequence_id")
	entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), number)
	return string(protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), entry)) // parameters
}

func TestCallsOfOneSequenceGoToOneServer(t *testing.T) {
	var servers []*elsewhere
	args := []string{"--policy", "sticky"}
	for range 3 {
		servers = append(servers, startElsewhere(t, echoes))
		args = append(args, "--backend", servers[len(servers)-1].address)
	}
	b := startBefore(t, args...)
	b.waitUntilServing(t, 3)
	for id := range uint64(30) {
		message, told := inferOf(id+1), []string{}
		if id%2 == 0 {
			message, told = "x", []string{"pipeline-sequence-id", strconv.Itoa(int(id + 1))}
		}
		before := [3]int64{servers[0].calls.Load(), servers[1].calls.Load(), servers[2].calls.Load()}
		for _, method := range []string{unaryMethod, unaryMethod, streamMethod} {
			if _, _, _, err := b.call(t, method, message, told...); err != nil {
				t.Error(err)
			}
		}
		for at, each := range servers {
			if got := each.calls.Load() - before[at]; got != 0 && got != 3 {
				t.Errorf("%d of 3 calls of sequence %d went to one server", got, id+1)
			}
		}
	}
}
