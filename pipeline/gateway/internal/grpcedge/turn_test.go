package grpcedge

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/link/frame"
)

const infer = "/inference.GRPCInferenceService/ModelInfer"

// slow are links of which the first call that asks for them has to wait: its goroutine gets no time.
type slow struct {
	fixed
	count atomic.Int32
	asked chan int32
	first chan struct{}
	once  sync.Once
}

func (s *slow) release() { s.once.Do(func() { close(s.first) }) }

func (s *slow) Links() []*link.Client {
	number := s.count.Add(1)
	s.asked <- number
	if number == 1 {
		<-s.first
	}
	return s.fixed
}

// startSlow runs an edge with such links.
func startSlow(t *testing.T) (*bench, *slow) {
	t.Helper()
	said := greeting()
	said.Methods = append(said.Methods, frame.Entry{ID: 3, Name: infer})
	b := start(t, said, func(config *Config, _ *fixed) { config.Services = []string{"inference.GRPCInferenceService"} })
	links := &slow{fixed: b.edge.upstreams.(fixed), asked: make(chan int32, 8), first: make(chan struct{})}
	b.edge.upstreams = links
	t.Cleanup(links.release)
	return b, links
}

// send sends a call's message before it returns, and reads its answer in a goroutine of its own.
func (b *bench) send(ctx context.Context, t *testing.T, message string) <-chan heard {
	t.Helper()
	opened, err := b.conn.NewStream(ctx, &grpc.StreamDesc{}, infer)
	if err == nil {
		err = opened.SendMsg(&answer{mem.BufferSlice{mem.SliceBuffer(message)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan heard, 1)
	go func() {
		var got asked
		err := opened.RecvMsg(&got)
		found := heard{code: status.Code(err), text: status.Convert(err).Message()}
		if err == nil {
			found.answer = string(got.data())
			got.free()
		}
		ended <- found
	}()
	return ended
}

// stepBytes returns a ModelInferRequest of model "m" in a sequence.
func stepBytes(id string) string {
	parameter := "\x0a\x0bsequence_id\x12\x03\x1a\x01" + id
	return "\x0a\x01m\x22" + string(rune(len(parameter))) + parameter
}

func TestStepsOfOneConnectionDoNotOvertakeEachOther(t *testing.T) {
	b, links := startSlow(t)
	answers := make([]<-chan heard, 0, 4)
	send := func(message string) {
		answers = append(answers, b.send(t.Context(), t, message))
		gatewaytest.Soon(t, "a call", links.asked)
	}
	send(stepBytes("a"))
	send(stepBytes("a"))
	send("\x0a\x01m")
	if got := b.peer.AskedBytes(); string(got.Data) != "\x0a\x01m" {
		t.Fatalf("%q came before the step that was sent first", got.Data)
	} else {
		b.peer.AnswerBytes(got.ID, nil)
	}
	gatewaytest.Soon(t, "an answer", answers[2]).wants(t, codes.OK, "")
	links.release()
	first, second := b.peer.AskedBytes(), b.peer.AskedBytes()
	b.peer.AnswerBytes(first.ID, []byte("1"))
	b.peer.AnswerBytes(second.ID, []byte("2"))
	for at, text := range []string{"1", "2"} {
		if found := gatewaytest.Soon(t, "an answer", answers[at]); found.answer != text {
			t.Errorf("step %s: %v", text, found)
		}
	}
}

func TestAStepWaitsForNoMessageThatIsNotThere(t *testing.T) {
	b, _ := startSlow(t)
	b.edge.upstreams = b.edge.upstreams.(*slow).fixed
	open, err := b.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, infer)
	if err != nil {
		t.Fatal(err)
	}
	ended := b.send(t.Context(), t, stepBytes("a"))
	b.peer.AnswerBytes(b.peer.AskedBytes().ID, nil)
	gatewaytest.Soon(t, "an answer", ended).wants(t, codes.OK, "")
	if err := open.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

func TestAStepThatWaitsEndsWithItsCaller(t *testing.T) {
	b, links := startSlow(t)
	b.send(t.Context(), t, stepBytes("a"))
	gatewaytest.Soon(t, "a call", links.asked)
	ctx, leave := context.WithCancel(t.Context())
	b.send(ctx, t, stepBytes("a"))
	gatewaytest.Soon(t, "a call", links.asked)
	leave()
	if code := gatewaytest.Soon(t, "an end", b.codes); code != codes.Canceled {
		t.Errorf("%v", code)
	}
	links.release()
	b.peer.AnswerBytes(b.peer.AskedBytes().ID, nil)
}
