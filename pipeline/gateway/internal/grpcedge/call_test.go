package grpcedge

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/memory"
)

func TestBytesPassAsTheyAre(t *testing.T) {
	b := start(t, greeting(), nil)
	for _, packing := range []string{"identity", "gzip", "deflate"} {
		for _, message := range []string{"", "\n\x00", strings.Repeat("x", limit)} {
			ended := b.call(t.Context(), ask, message, grpc.UseCompressor(packing))
			got := b.peer.AskedBytes()
			if string(got.Data) != message {
				t.Fatalf("%s: %d bytes of %d", packing, len(got.Data), len(message))
			}
			b.peer.AnswerBytes(got.ID, []byte(message))
			if found := gatewaytest.Soon(t, "an answer", ended); found.code != codes.OK || found.answer != message || len(found.trailers) > 0 {
				t.Fatalf("%s: %v %q, %d bytes, %v", packing, found.code, found.text, len(found.answer), found.trailers)
			}
		}
	}
}

func TestAServerIsToldOnlyWhatItWants(t *testing.T) {
	wanted := map[string]frame.Greeting{}
	all := greeting()
	all.Headers = true
	wanted["pipeline-timeout traceparent x-bin x-forwarded-for x-user"] = all
	traced := greeting()
	traced.Trace = true
	wanted["pipeline-timeout traceparent"] = traced
	wanted["pipeline-timeout"] = greeting()
	for names, said := range wanted {
		b := start(t, said, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-1", "pipeline-timeout", "5S", "x-user", "anna", "x-bin", "\x00\n")
		ended := b.call(ctx, ask, "")
		got := b.peer.AskedBytes()
		var found []string
		for at := 0; at < len(got.Headers); at += 2 {
			if got.Headers[at] != "user-agent" && got.Headers[at] != "grpc-accept-encoding" {
				found = append(found, got.Headers[at])
			}
		}
		if slices.Sort(found); strings.Join(found, " ") != names {
			t.Errorf("%q, not %q", found, names)
		}
		if got.Timeout <= 0 || got.Timeout > time.Hour || !strings.HasPrefix(got.Caller, "127.0.0.1:") {
			t.Errorf("%v, %q", got.Timeout, got.Caller)
		}
		b.peer.AnswerBytes(got.ID, nil)
		gatewaytest.Soon(t, "an answer", ended).wants(t, codes.OK, "")
	}
}

func TestAnEndIsAStatusWithTrailers(t *testing.T) {
	b := start(t, greeting(), nil)
	ended := b.call(t.Context(), ask, "")
	end := frame.Ended{Code: uint32(codes.ResourceExhausted), Status: 503, ErrNo: 3004, Text: "full", Trailers: frame.AppendField(nil, "pipeline-err-no", "3004")}
	b.peer.Write(frame.AppendEnd(nil, b.peer.AskedBytes().ID, end, nil))
	found := gatewaytest.Soon(t, "an answer", ended)
	found.wants(t, codes.ResourceExhausted, "full")
	if got := found.trailers.Get("pipeline-err-no"); !slices.Equal(got, []string{"3004"}) {
		t.Errorf("%v", found.trailers)
	}
	if code := gatewaytest.Soon(t, "a note", b.codes); code != codes.ResourceExhausted {
		t.Errorf("noted: %v", code)
	}
}

func TestALongTextIsCutBetweenCharacters(t *testing.T) {
	if got := short(strings.Repeat("x", mostText)); len(got) != mostText {
		t.Errorf("%d bytes", len(got))
	}
	if got := short("x" + strings.Repeat("ä", mostText)); len(got) != mostText-1+len("...") || !strings.HasSuffix(got, "ä...") {
		t.Errorf("%d bytes, %q", len(got), got[len(got)-6:])
	}
}

func TestWhatIsTooLargeIsRefused(t *testing.T) {
	b := start(t, greeting(), nil)
	found := gatewaytest.Soon(t, "an answer", b.call(t.Context(), ask, strings.Repeat("x", limit+1)))
	found.wants(t, codes.ResourceExhausted, "grpc: received message larger than max (100001 vs. 100000)")
	much := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", mostMetadata))
	if found := gatewaytest.Soon(t, "an answer", b.call(much, ask, "")); found.code != codes.ResourceExhausted || !strings.HasPrefix(found.text, "received metadata size exceeds hard limit (") {
		t.Errorf("%v %q", found.code, found.text)
	}
	ended := b.call(t.Context(), ask, "")
	b.peer.AnswerBytes(b.peer.AskedBytes().ID, make([]byte, limit+1))
	gatewaytest.Soon(t, "an answer", ended).wants(t, codes.ResourceExhausted, "SERVER: Sent message larger than max (100001 vs. 100000)")
}

func TestWhoFindsNoRoomIsToldWhenToComeAgain(t *testing.T) {
	b := start(t, greeting(), func(config *Config, _ *fixed) { config.Budget = memory.NewBudget(limit) })
	first := b.call(t.Context(), ask, strings.Repeat("x", limit))
	inside := b.peer.AskedBytes()
	found := gatewaytest.Soon(t, "an answer", b.call(t.Context(), ask, "x"))
	if found.code != codes.ResourceExhausted || !slices.Equal(found.trailers.Get(retryKey), []string{"1000"}) || !slices.Equal(found.trailers.Get(errNoKey), []string{"3004"}) {
		t.Errorf("%v %q %v", found.code, found.text, found.trailers)
	}
	b.peer.AnswerBytes(inside.ID, nil)
	gatewaytest.Soon(t, "an answer", first).wants(t, codes.OK, "")
}

func TestMethodsThatTheServerDoesNotHave(t *testing.T) {
	b := start(t, greeting(), nil)
	gatewaytest.Soon(t, "an answer", b.call(t.Context(), "/test.Service/Other", "")).wants(t, codes.Unimplemented, textNoMethod)
}

func TestACallThatNeverLeftGoesToAnotherServer(t *testing.T) {
	b := start(t, greeting(), func(_ *Config, links *fixed) {
		gone, _ := clientOf(t, t.TempDir()+"/none")
		*links = slices.Concat(fixed{gone}, *links)
	})
	ended := b.call(t.Context(), ask, "x")
	b.peer.AnswerBytes(b.peer.AskedBytes().ID, nil)
	gatewaytest.Soon(t, "an answer", ended).wants(t, codes.OK, "")
}

func TestWithoutAServerAndWithOneThatIsLostCallsAreUnavailable(t *testing.T) {
	b := start(t, greeting(), nil)
	ended := b.call(t.Context(), ask, "x")
	b.peer.AskedBytes()
	_ = b.peer.Raw.Close()
	found := gatewaytest.Soon(t, "an answer", ended)
	if found.code != codes.Unavailable || !strings.HasPrefix(found.text, "the backend went away with the request: ") || !slices.Equal(found.trailers.Get(errNoKey), []string{"3001"}) {
		t.Errorf("%v %q %v", found.code, found.text, found.trailers)
	}
	lonely := start(t, greeting(), func(_ *Config, links *fixed) { *links = nil })
	gatewaytest.Soon(t, "an answer", lonely.call(t.Context(), ask, "x")).wants(t, codes.Unavailable, textNobody)
}

func TestACallerThatLeavesIsReported(t *testing.T) {
	b := start(t, greeting(), nil)
	ctx, leave := context.WithCancel(t.Context())
	ended := b.call(ctx, ask, "x")
	asked := b.peer.AskedBytes()
	leave()
	if got := b.peer.Hear(); got.Kind != frame.Reset || got.ID != asked.ID {
		t.Errorf("a frame of kind %d", got.Kind)
	}
	if found := gatewaytest.Soon(t, "an answer", ended); found.code != codes.Canceled {
		t.Errorf("%v", found.code)
	}
}

// open begins a stream.
func (b *bench) open(t *testing.T) grpc.ClientStream {
	t.Helper()
	opened, err := b.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, stream)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

func say(t *testing.T, opened grpc.ClientStream, text string) {
	t.Helper()
	if err := opened.SendMsg(&answer{mem.BufferSlice{mem.SliceBuffer(text)}}); err != nil {
		t.Fatal(err)
	}
}

func hear(opened grpc.ClientStream) (string, error) {
	var got asked
	if err := opened.RecvMsg(&got); err != nil {
		return "", err
	}
	defer got.free()
	return string(got.data()), nil
}

// said returns the next message of a stream as the server has it, or that no more will come.
func (b *bench) said(t *testing.T) (id uint64, text string, isLast bool) {
	t.Helper()
	for {
		got := b.peer.Hear()
		data := got.Body.Data
		if got.Kind == frame.Open {
			_, _, data, _ = frame.ReadOpen(data)
		} else if got.Kind != frame.Data {
			t.Fatalf("a frame of kind %d", got.Kind)
		}
		if got.Has(frame.Message) || got.Has(frame.Last) {
			return got.ID, string(data), got.Has(frame.Last) && !got.Has(frame.Message)
		}
	}
}

func TestMessagesOfAStreamPassBothWays(t *testing.T) {
	b := start(t, greeting(), nil)
	opened := b.open(t)
	id := uint64(0)
	for _, text := range []string{"one", "", strings.Repeat("x", limit-1)} {
		say(t, opened, text)
		number, got, _ := b.said(t)
		if id = number; got != text {
			t.Fatalf("%d bytes of %d", len(got), len(text))
		}
		b.peer.Say(id, []byte(text+"!"))
		if found, err := hear(opened); err != nil || found != text+"!" {
			t.Fatalf("%d bytes, %v", len(found), err)
		}
	}
	if err := opened.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, got, isLast := b.said(t); !isLast {
		t.Errorf("%q", got)
	}
	b.peer.Write(frame.AppendEnd(nil, id, frame.Ended{Status: 200}, nil))
	if _, err := hear(opened); err != io.EOF {
		t.Errorf("%v", err)
	}
}

func TestAStreamIsCutWhenTheEdgeStops(t *testing.T) {
	b := start(t, greeting(), nil)
	opened := b.open(t)
	say(t, opened, "one")
	id, _, _ := b.said(t)
	stopped := make(chan bool, 1)
	go func() { stopped <- b.edge.Stop(context.Background()) }()
	if _, got, isLast := b.said(t); !isLast {
		t.Errorf("%q", got)
	}
	b.peer.Say(id, []byte("late"))
	b.peer.Write(frame.AppendEnd(nil, id, frame.Ended{Status: 200}, nil))
	if found, err := hear(opened); err != nil || found != "late" {
		t.Errorf("%q, %v", found, err)
	}
	if _, err := hear(opened); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != textStopped {
		t.Errorf("%v", err)
	}
	if !gatewaytest.Soon(t, "the end", stopped) {
		t.Error("something was broken off")
	}
}

func TestAStreamWithAMessageThatIsTooLargeEnds(t *testing.T) {
	b := start(t, greeting(), nil)
	opened := b.open(t)
	say(t, opened, "one")
	b.said(t)
	say(t, opened, strings.Repeat("x", limit+1))
	if _, err := hear(opened); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	if got := b.peer.Hear(); got.Kind != frame.Reset {
		t.Errorf("a frame of kind %d", got.Kind)
	}
}

var _ Upstreams = fixed{&link.Client{}}

// The order is Go's, which may take a goroutine out of turn now and then: nearly all rounds have to keep it.
func TestCallsThatAreSentTogetherBeginAndEndInTheirOrder(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	b := start(t, greeting(), nil)
	conn, answers := b.raw(t)
	const calls, rounds, least = 10, 20, 15
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	begun, ended := 0, 0
	for round := range uint32(rounds) {
		var together bytes.Buffer
		framer, first := http2.NewFramer(&together, nil), 2*calls*round+1
		for number := range byte(calls) {
			block.Reset()
			writeHead(encoder)
			id := first + 2*uint32(number)
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
			_ = framer.WriteData(id, true, []byte{0, 0, 0, 0, 1, number})
		}
		if _, err := conn.Write(together.Bytes()); err != nil {
			t.Fatal(err)
		}
		var numbers []byte
		var ids []uint64
		for range calls {
			got := b.peer.AskedBytes()
			numbers, ids = append(numbers, got.Data[len(got.Data)-1]), append(ids, got.ID)
		}
		for _, id := range ids {
			b.peer.AnswerBytes(id, []byte("y"))
		}
		var ends []uint32
		for len(ends) < calls {
			got, err := answers.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if head, isHead := got.(*http2.HeadersFrame); isHead && head.StreamEnded() {
				ends = append(ends, head.StreamID)
			}
		}
		if slices.IsSorted(numbers) {
			begun++
			if slices.IsSorted(ends) {
				ended++
			}
		}
	}
	if begun < least || ended < least {
		t.Errorf("of %d rounds %d began and %d ended in order", rounds, begun, ended)
	}
}
