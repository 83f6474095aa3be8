package link

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/deadline"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/upstream"
)

func TestALinkAsksAndIsAnswered(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "hello")
	asked := peer.Asked()
	if asked.Timeout >= 0 || asked.Trace != "" || asked.Request.Value[0] != "hello" {
		t.Errorf("asked %+v", asked)
	}
	peer.Answer(asked.ID, gatewaytest.ResponseOf("there"))
	if got := gatewaytest.Soon(t, "an answer", done); got.err != nil || got.response.Value[0] != "there" {
		t.Errorf("got %+v", got)
	}
}

func TestALinkTellsTheTimeAndTheTrace(t *testing.T) {
	client, peer := startPair(t)
	for said, want := range map[string]string{"a": "a", "b,c": "c", strings.Repeat("x", frame.MostTraceBytes+1): ""} {
		for _, limit := range []deadline.Deadline{{Text: "0m", After: 0}, {Text: "1n", After: 1}, {Text: "99999999H", After: deadline.LongestTimeout}} {
			go func() {
				header := http.Header{"Traceparent": strings.Split(said, ",")}
				_, _ = client.ask(context.Background(), gatewaytest.RequestOf(""), header, limit)
			}()
			asked := peer.Asked()
			peer.Answer(asked.ID, gatewaytest.ResponseOf(""))
			if asked.Timeout != limit.After || asked.Trace != want {
				t.Errorf("%s, %.10s: %+v", limit.Text, said, asked)
			}
		}
	}
}

func TestEveryoneGetsTheirOwnAnswerInWhateverOrder(t *testing.T) {
	client, peer := startPair(t)
	var callers sync.WaitGroup
	const count = 100
	for number := range count {
		callers.Go(func() {
			text := fmt.Sprint(number)
			response, err := client.ask(context.Background(), gatewaytest.RequestOf(text), nil, deadline.Deadline{})
			if err != nil || response.Value[0] != text {
				t.Errorf("%s: %v, %v", text, response, err)
			}
		})
	}
	var asked []gatewaytest.LinkAsked
	for range count {
		asked = append(asked, peer.Asked())
	}
	for at := range asked { // the last first
		each := asked[count-1-at]
		peer.Answer(each.ID, gatewaytest.ResponseOf(each.Request.Value[0]))
	}
	callers.Wait()
}

func TestMessagesOfManyMegabytesPassALink(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	go server.Serve(gatewaytest.Echo)
	client := startLink(t, server.Path)
	client.reporting(t, upstream.StateServing)
	for _, size := range []int{0, 64 << 10, 1 << 20, 20 << 20, frame.MostPieceBytes - 10, frame.MostPieceBytes, 3 * frame.MostPieceBytes, 1} {
		text := strings.Repeat("x", size)
		got := gatewaytest.Soon(t, "an answer", client.asking(context.Background(), text))
		if got.err != nil || got.response.Value[0] != text {
			t.Errorf("%d bytes: %v", size, got.err)
		}
	}
}

// Frames ------------------------------------------------------------------------------------

func TestFramesAreTheSameHoweverTheyAreCut(t *testing.T) {
	var stream []byte
	for number := range 50 {
		body := strings.Repeat("x", 20*number*number)
		stream = append(frame.AppendHead(stream, len(body), frame.Answer, uint64(number)), body...)
	}
	for _, source := range []io.Reader{
		bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream)), iotest.HalfReader(bytes.NewReader(stream)),
	} {
		reader := bufio.NewReaderSize(source, 16)
		for number := range 50 {
			got, err := frame.Read(reader, frame.Ready, frame.Failure)
			if err != nil || got.Kind != frame.Answer || got.ID != uint64(number) || len(got.Body) != 20*number*number {
				t.Fatalf("%d: %+v, %v", number, got, err)
			}
		}
		if _, err := frame.Read(reader, frame.Ready, frame.Failure); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
}

func TestAFrameThatIsCutShortIsAnError(t *testing.T) {
	whole := append(frame.AppendHead(nil, 10, frame.Answer, 1), "0123456789"...)
	for size := 1; size < len(whole); size++ {
		_, err := frame.Read(bufio.NewReader(bytes.NewReader(whole[:size])), frame.Ready, frame.Failure)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestWhatIsQueuedLeavesInOneGo(t *testing.T) {
	conn := newLinkConn(nil)
	for range 3 {
		if err := conn.send(callOfLink(t, "x")); err != nil {
			t.Error(err)
		}
	}
	batch := newLinkBatch()
	if !conn.take(batch) || len(batch.vector) != 3 || len(conn.wake) != 1 {
		t.Errorf("%d frames, woken %d times", len(batch.vector), len(conn.wake))
	}
	if conn.take(batch) {
		t.Errorf("%d frames were left", len(batch.vector))
	}
}

// callOfLink is a request that can be queued.
func callOfLink(t *testing.T, text string) *linkCall {
	t.Helper()
	request, err := proto.Marshal(gatewaytest.RequestOf(text))
	if err != nil {
		t.Fatal(err)
	}
	data, err := askMessage(&upstream.Call{Data: request}, false)
	if err != nil {
		t.Fatal(err)
	}
	return &linkCall{
		answered: make(chan linkAnswer, 1), share: &memory.Share{Of: memory.NewBudget(math.MaxInt64)}, message: &linkMessage{kind: frame.Ask, data: data},
	}
}

func TestASmallRequestWaitsForNoLargeOne(t *testing.T) {
	conn, batch := newLinkConn(nil), newLinkBatch()
	size := 10 << 20
	larges := []*linkCall{callOfLink(t, strings.Repeat("a", size)), callOfLink(t, strings.Repeat("b", size))}
	for _, each := range larges {
		_ = conn.send(each)
	}
	var stream bytes.Buffer
	write := func() (bytes int) {
		for _, each := range batch.vector {
			n, _ := stream.Write(each)
			bytes += n
		}
		return bytes
	}
	batches := 0
	for ; conn.take(batch); batches++ {
		if bytes := write(); bytes > batchBytes+2*(frame.MostPieceBytes+frame.HeadBytes) {
			t.Fatalf("a batch of %d bytes", bytes)
		}
		small := callOfLink(t, "small")
		_ = conn.send(small)
		if !conn.take(batch) {
			t.Fatal("nothing is queued")
		}
		if got := binary.BigEndian.Uint64(batch.vector[0][5:]); got != small.message.id {
			t.Fatalf("batch %d begins with %d, not %d", batches, got, small.message.id)
		}
		write()
	}
	if batches < size/batchBytes {
		t.Errorf("%d batches", batches)
	}
	peer := &gatewaytest.LinkPeer{T: t, Source: bufio.NewReader(&stream), Pieces: map[uint64][]byte{}}
	found := map[string]int{}
	for {
		got, err := peer.Message()
		if err != nil {
			break
		}
		found[peer.Parsed(got).Request.Value[0]]++
	}
	if len(found) != 3 || found[strings.Repeat("a", size)] != 1 || found[strings.Repeat("b", size)] != 1 || found["small"] != batches {
		t.Errorf("%d messages, %d small ones of %d", len(found), found["small"], batches)
	}
}

func TestLargeRequestsGoOnBesideAFloodOfSmallOnes(t *testing.T) {
	conn, batch := newLinkConn(nil), newLinkBatch()
	_ = conn.send(callOfLink(t, strings.Repeat("a", 10*frame.MostPieceBytes)))
	for range 12 {
		for range batchFrames + 1 {
			_ = conn.send(callOfLink(t, "small"))
		}
		conn.take(batch)
	}
	if conn.queue.begun.Len() != 0 {
		t.Error("the large one waits")
	}
}

func TestWhoLeavesTakesAlongWhatIsQueued(t *testing.T) {
	conn, batch := newLinkConn(nil), newLinkBatch()
	waiting, halfway := callOfLink(t, strings.Repeat("a", 1<<20)), callOfLink(t, strings.Repeat("b", 1<<20))
	_ = conn.send(halfway)
	conn.take(batch)
	_ = conn.send(waiting)
	for _, each := range []*linkCall{waiting, halfway} {
		if !conn.forget(each.message.id) || each.message.data != nil || conn.forget(each.message.id) {
			t.Error("it is still there")
		}
	}
	if len(conn.calls) != 0 || conn.queue.begun.Len() != 0 || conn.queue.fresh.Len() != 1 {
		t.Errorf("%d calls, %d begun, %d fresh", len(conn.calls), conn.queue.begun.Len(), conn.queue.fresh.Len())
	}
	conn.take(batch) // the one word is for the one of which something left
	if got := batch.vector[0]; len(batch.vector) != 1 || got[4] != frame.Cancel || binary.BigEndian.Uint64(got[5:]) != halfway.message.id {
		t.Errorf("%q", batch.vector)
	}
}

// Heartbeat ------------------------------------------------------------------------------------

func TestAServerThatSaysNothingIsSilentAndThenGone(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "x")
	peer.Asked()
	peer.IsMute = true
	for range 3 { // of the first it had something to say
		client.ticks <- time.Time{}
	}
	if got := gatewaytest.Soon(t, "a report", client.reports); got.State != upstream.StateConnected || got.Reason != "it has said nothing for 1s" {
		t.Errorf("got %+v", got)
	}
	peer.Say(frame.Ready, 0, []byte{frame.Version, 1})
	if got := gatewaytest.Soon(t, "a report", client.reports); got.State != upstream.StateConnected {
		t.Errorf("got %+v", got)
	}
	client.ticks <- time.Time{}
	if got := gatewaytest.Soon(t, "a report", client.reports); got.State != upstream.StateServing {
		t.Errorf("got %+v", got)
	}
	for range 4 {
		client.ticks <- time.Time{}
	}
	client.reporting(t, upstream.StateConnected)
	if got := client.reporting(t, upstream.StateDown); got.Reason != "it has stopped answering" {
		t.Errorf("got %+v", got)
	}
	gatewaytest.IsRefused(t, gatewaytest.Soon(t, "the end of a call", done).err, 503, failure.CodeClosed, "it has stopped answering")
}

func TestAServerThatAnswersHeartbeatsStays(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	go server.Serve(gatewaytest.Echo)
	client := startLink(t, server.Path)
	client.reporting(t, upstream.StateServing)
	for range 20 {
		client.ticks <- time.Time{}
		gatewaytest.WaitUntil(t, "it is heard", client.current.Load().wasHeard.Load)
	}
	if len(client.reports) != 0 {
		t.Errorf("it reports %+v", <-client.reports)
	}
}

func TestAServerThatHasNotBegunIsGivenUpToo(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	client := startLink(t, server.Path)
	gatewaytest.Soon(t, "a connection", server.Peers)
	for range 4 {
		client.ticks <- time.Time{}
	}
	if got := gatewaytest.Soon(t, "a report", client.reports); got != (upstream.Health{State: upstream.StateDown, Reason: "it has stopped answering"}) {
		t.Errorf("got %+v", got)
	}
}

// What goes wrong ----------------------------------------------------------------------------

func TestAFailureIsARefusal(t *testing.T) {
	client, peer := startPair(t)
	for _, want := range []failure.Error{
		{Status: 503, ErrNo: failure.CodeOverloaded, Text: "no place", RetryAfter: 7},
		{Status: 500, ErrNo: failure.CodeUnknown, Text: "internal error of the server"},
		{Status: 400, ErrNo: -7, Text: ""},
	} {
		done := client.asking(context.Background(), "x")
		peer.Fail(peer.Asked().ID, uint16(want.Status), int32(want.ErrNo), want.Text)
		var got *failure.Error
		if err := gatewaytest.Soon(t, "an answer", done).err; !errors.As(err, &got) || *got != want {
			t.Errorf("got %+v, want %+v", err, want)
		}
	}
}

func TestAnAnswerThatCannotBeReadIsARefusal(t *testing.T) {
	client, peer := startPair(t)
	for _, body := range []frame.Frame{
		{Kind: frame.Answer, Body: []byte{0xff}},
		{Kind: frame.Failure, Body: []byte("short")},
		{Kind: frame.Failure, Body: []byte("\x00\x00\x00\x00\x00\x00\x00\x00text")},
	} {
		done := client.asking(context.Background(), "x")
		peer.Say(body.Kind, peer.Asked().ID, body.Body)
		gatewaytest.IsRefused(t, gatewaytest.Soon(t, "an answer", done).err, 500, failure.CodePackage, "cannot be read")
	}
	done := client.asking(context.Background(), "x")
	peer.Answer(peer.Asked().ID, gatewaytest.ResponseOf("next"))
	if got := gatewaytest.Soon(t, "an answer", done); got.err != nil {
		t.Error(got.err)
	}
}

func TestWhoLeavesIsReportedAndForgotten(t *testing.T) {
	client, peer := startPair(t)
	ctx, leave := context.WithCancel(context.Background())
	left := client.asking(ctx, "left")
	id := peer.Asked().ID
	leave()
	if got := gatewaytest.Soon(t, "the end of a call", left); !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %+v", got)
	}
	if got := peer.Hear(); got.Kind != frame.Cancel || got.ID != id || len(got.Body) != 0 {
		t.Errorf("heard %+v", got)
	}
	peer.Answer(id, gatewaytest.ResponseOf("too late"))
	stays := client.asking(context.Background(), "stays")
	asked := peer.Asked()
	if asked.ID == id {
		t.Error("the id was used again")
	}
	peer.Answer(asked.ID, gatewaytest.ResponseOf("in time"))
	if got := gatewaytest.Soon(t, "an answer", stays); got.err != nil || got.response.Value[0] != "in time" {
		t.Errorf("got %+v", got)
	}
}

func TestADeadlineThatPassesIsReportedToo(t *testing.T) {
	client, peer := startPair(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if got := gatewaytest.Soon(t, "the end of a call", client.asking(ctx, "x")); !errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("got %+v", got)
	}
	id := peer.Asked().ID
	if got := peer.Hear(); got.Kind != frame.Cancel || got.ID != id {
		t.Errorf("heard %+v", got)
	}
}

func TestAnAnswerAtTheMomentThatTheCallerLeavesHarmsNobody(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	go server.Serve(gatewaytest.Echo)
	client := startLink(t, server.Path)
	client.reporting(t, upstream.StateServing)
	var callers sync.WaitGroup
	for number := range 8 {
		callers.Go(func() {
			for turn := range 200 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(turn)*time.Microsecond)
				text := fmt.Sprint(number, turn)
				response, err := client.ask(ctx, gatewaytest.RequestOf(text), nil, deadline.Deadline{})
				if err == nil && response.Value[0] != text {
					t.Errorf("%s: %v", text, response.Value)
				}
				cancel()
			}
		})
	}
	callers.Wait()
}

func TestAConnectionThatBreaksTakesItsRequestsAlong(t *testing.T) {
	client, peer := startPair(t)
	first, second := client.asking(context.Background(), "a"), client.asking(context.Background(), "b")
	peer.Asked()
	peer.Asked()
	_ = peer.Raw.Close()
	for _, done := range []<-chan outcome{first, second} {
		gatewaytest.IsRefused(t, gatewaytest.Soon(t, "the end of a call", done).err, 503, failure.CodeClosed, "went away with the request")
	}
}

func TestARequestThatWasNotWrittenHasNotLeft(t *testing.T) {
	raw, _ := net.Pipe()
	conn := newLinkConn(raw)
	answers := make(chan error, 2)
	ask := func() {
		_, err := conn.ask(context.Background(), &upstream.Call{Data: []byte("x")})
		answers <- err
	}
	queued := func() bool {
		conn.lock.Lock()
		defer conn.lock.Unlock()
		return conn.queue.fresh.Len() == 1
	}
	go ask()
	gatewaytest.WaitUntil(t, "a request is queued", queued)
	conn.take(newLinkBatch()) // as the writer does, before it writes
	go ask()
	gatewaytest.WaitUntil(t, "another one is queued", queued)
	conn.close(io.EOF)
	conn.close(io.EOF)
	neverLeft, lost := gatewaytest.Soon(t, "an end", answers), gatewaytest.Soon(t, "an end", answers)
	if errors.Is(lost, upstream.ErrNeverLeft) {
		neverLeft, lost = lost, neverLeft
	}
	if !errors.Is(neverLeft, upstream.ErrNeverLeft) {
		t.Errorf("got %v", neverLeft)
	}
	gatewaytest.IsRefused(t, lost, 503, failure.CodeClosed, "went away with the request: EOF")
	if ask(); !errors.Is(<-answers, upstream.ErrNeverLeft) {
		t.Error("a closed connection was asked")
	}
}

// Health -------------------------------------------------------------------------------------

func TestALinkKnowsHowTheServerIs(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	client := startLink(t, server.Path)
	peer := server.Peer(t, 0)
	if got := gatewaytest.Soon(t, "a report", client.reports); got != (upstream.Health{State: upstream.StateConnected, Reason: "it is not ready"}) {
		t.Errorf("got %+v", got)
	}
	done := client.asking(context.Background(), "early")
	peer.Answer(peer.Asked().ID, gatewaytest.ResponseOf("yes"))
	if got := gatewaytest.Soon(t, "an answer", done); got.err != nil {
		t.Errorf("got %+v", got)
	}
	peer.Say(frame.Ready, 0, []byte{frame.Version, 1})
	if got := gatewaytest.Soon(t, "a report", client.reports); got.State != upstream.StateServing {
		t.Errorf("got %+v", got)
	}
	_ = peer.Raw.Close()
	if got := gatewaytest.Soon(t, "a report", client.reports); got != (upstream.Health{State: upstream.StateDown, Reason: "EOF"}) {
		t.Errorf("got %+v", got)
	}
}

func TestALinkConnectsAgain(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	client := startLink(t, server.Path)
	for range 3 {
		peer := server.Peer(t, 1)
		client.reporting(t, upstream.StateServing)
		_ = peer.Raw.Close()
		client.reporting(t, upstream.StateDown)
	}
}

func TestALinkWaitsForASocket(t *testing.T) {
	path := t.TempDir() + "/0.link"
	client := startLink(t, path)
	if got := gatewaytest.Soon(t, "a report", client.reports); got.State != upstream.StateDown || !strings.Contains(got.Reason, "no such file") {
		t.Errorf("got %+v", got)
	}
	if _, err := client.ask(context.Background(), gatewaytest.RequestOf(""), nil, deadline.Deadline{}); !errors.Is(err, upstream.ErrNeverLeft) {
		t.Errorf("got %v", err)
	}
	gatewaytest.StartLinkServer(t, path).Peer(t, 1)
	client.reporting(t, upstream.StateServing)
}

func TestAServerThatSpeaksOtherwiseIsNotAsked(t *testing.T) {
	for said, text := range map[string]string{
		string(frame.AppendHead(nil, 0, frame.Ready, 0)):                                             "READY of 0 bytes",
		string(append(frame.AppendHead(nil, 2, frame.Ready, 0), 1, 1)):                               "version 1 of the link, this gateway version 2: build the gateway anew",
		string(frame.AppendHead(nil, 1<<20, frame.Ready, 0)):                                         "kind 16 with 1048585 bytes",
		string(frame.AppendHead(nil, 0, frame.Answer, 0)):                                            "a frame of kind 17 with 9 bytes",
		string(append(frame.AppendHead(nil, 2, frame.Ready, 0), frame.Version, 1)) + "HTTP/1.1 400 ": "a frame of kind 47 with 1213486160 bytes",
		"\x00\x00\x00\x01\x1012345678":                                                               "with 1 bytes",
	} {
		server := gatewaytest.StartLinkServer(t, "")
		client := startLink(t, server.Path)
		peer := gatewaytest.Soon(t, "a connection", server.Peers)
		_, _ = io.WriteString(peer.Raw, said)
		if got := client.reporting(t, upstream.StateDown); !strings.Contains(got.Reason, text) {
			t.Errorf("%q: %+v", said, got)
		}
	}
}
