package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/protobuf/proto"
)

func TestALinkAsksAndIsAnswered(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "hello")
	asked := peer.asked()
	if asked.timeout >= 0 || asked.trace != "" || asked.request.Value[0] != "hello" {
		t.Errorf("asked %+v", asked)
	}
	peer.answer(asked.id, responseOf("there"))
	if got := soon(t, "an answer", done); got.err != nil || got.response.Value[0] != "there" {
		t.Errorf("got %+v", got)
	}
}

func TestALinkTellsTheTimeAndTheTrace(t *testing.T) {
	client, peer := startPair(t)
	for said, want := range map[string]string{"a": "a", "b,c": "c", strings.Repeat("x", mostTraceBytes+1): ""} {
		for _, limit := range []deadline{{"0m", 0}, {"1n", 1}, {"99999999H", longestTimeout}} {
			go func() {
				header := http.Header{"Traceparent": strings.Split(said, ",")}
				_, _ = client.ask(context.Background(), requestOf(""), header, limit)
			}()
			asked := peer.asked()
			peer.answer(asked.id, responseOf(""))
			if asked.timeout != limit.after || asked.trace != want {
				t.Errorf("%s, %.10s: %+v", limit.text, said, asked)
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
			response, err := client.ask(context.Background(), requestOf(text), nil, deadline{})
			if err != nil || response.Value[0] != text {
				t.Errorf("%s: %v, %v", text, response, err)
			}
		})
	}
	var asked []linkAsked
	for range count {
		asked = append(asked, peer.asked())
	}
	for at := range asked { // the last first
		each := asked[count-1-at]
		peer.answer(each.id, responseOf(each.request.Value[0]))
	}
	callers.Wait()
}

func TestMessagesOfManyMegabytesPassALink(t *testing.T) {
	server := startLinkServer(t, "")
	go server.serve(echo)
	client := startLink(t, server.path)
	client.reporting(t, stateServing)
	for _, size := range []int{0, keptBufferBytes, trustedBytes, 20 << 20, mostPieceBytes - 10, mostPieceBytes, 3 * mostPieceBytes, 1} {
		text := strings.Repeat("x", size)
		got := soon(t, "an answer", client.asking(context.Background(), text))
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
		stream = append(appendHead(stream, len(body), frameAnswer, uint64(number)), body...)
	}
	for _, source := range []io.Reader{
		bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream)), iotest.HalfReader(bytes.NewReader(stream)),
	} {
		reader := bufio.NewReaderSize(source, 16)
		for number := range 50 {
			got, err := readFrame(reader, frameReady, frameFailure)
			if err != nil || got.kind != frameAnswer || got.id != uint64(number) || len(got.body) != 20*number*number {
				t.Fatalf("%d: %+v, %v", number, got, err)
			}
		}
		if _, err := readFrame(reader, frameReady, frameFailure); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
}

func TestAFrameThatIsCutShortIsAnError(t *testing.T) {
	whole := append(appendHead(nil, 10, frameAnswer, 1), "0123456789"...)
	for size := 1; size < len(whole); size++ {
		_, err := readFrame(bufio.NewReader(bytes.NewReader(whole[:size])), frameReady, frameFailure)
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
	request := requestOf(text)
	data, err := askMessage(request, proto.Size(request), "", nil, deadline{})
	if err != nil {
		t.Fatal(err)
	}
	return &linkCall{
		answered: make(chan linkAnswer, 1), share: shareOf(context.Background()), message: &linkMessage{kind: frameAsk, data: data},
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
		if bytes := write(); bytes > batchBytes+2*(mostPieceBytes+frameHeadBytes) {
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
	peer := &linkPeer{t: t, source: bufio.NewReader(&stream), pieces: map[uint64][]byte{}}
	found := map[string]int{}
	for {
		got, err := peer.message()
		if err != nil {
			break
		}
		found[peer.parsed(got).request.Value[0]]++
	}
	if len(found) != 3 || found[strings.Repeat("a", size)] != 1 || found[strings.Repeat("b", size)] != 1 || found["small"] != batches {
		t.Errorf("%d messages, %d small ones of %d", len(found), found["small"], batches)
	}
}

func TestLargeRequestsGoOnBesideAFloodOfSmallOnes(t *testing.T) {
	conn, batch := newLinkConn(nil), newLinkBatch()
	_ = conn.send(callOfLink(t, strings.Repeat("a", 10*mostPieceBytes)))
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
	if got := batch.vector[0]; len(batch.vector) != 1 || got[4] != frameCancel || binary.BigEndian.Uint64(got[5:]) != halfway.message.id {
		t.Errorf("%q", batch.vector)
	}
}

func TestALinkThatIsNotReadHoldsNothingOfWhoHasLeft(t *testing.T) {
	server := startLinkServer(t, "")
	g := start(t, nil, "--backend", linkScheme+server.path, "--slack", "0s")
	server.peer(t, 1) // which reads nothing
	g.waitUntilServing(t, 1)
	body := `{"value":["` + strings.Repeat("x", 1<<20) + `"]}`
	for range 20 {
		g.post(t, body, "Grpc-Timeout", "1m").isRefusal(t, 504, 6000, "deadline")
	}
	waitUntil(t, "nothing is held", func() bool { return g.budget.held.Load() == 0 })
	conn := g.pool.backends[0].asker.(*link).current.Load()
	conn.lock.Lock()
	defer conn.lock.Unlock()
	if len(conn.calls) != 0 || conn.queue.begun.Len() != 0 || conn.queue.fresh.Len() > 8 { // words to the server
		t.Errorf("%d calls, %d and %d messages", len(conn.calls), conn.queue.begun.Len(), conn.queue.fresh.Len())
	}
}

func TestAnAnswerThatThereIsNoRoomForIsNotKept(t *testing.T) {
	server := startLinkServer(t, "")
	g := start(t, func(cfg *config) { cfg.maxBufferedBytes = 1 << 20 }, "--backend", linkScheme+server.path)
	peer := server.peer(t, 1)
	g.waitUntilServing(t, 1)
	answered := make(chan reply)
	go func() { answered <- g.post(t, pair) }()
	asked := peer.asked()
	go peer.answer(asked.id, responseOf(strings.Repeat("x", 8<<20)))
	soon(t, "an answer", answered).isRefusal(t, 503, 3004, "--max-buffered-bytes")
	if got := peer.hear(); got.kind != frameCancel || got.id != asked.id {
		t.Errorf("heard %+v", got)
	}
	go func() { answered <- g.post(t, pair) }()
	peer.answer(peer.asked().id, responseOf("next"))
	if got := soon(t, "an answer", answered); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	waitUntil(t, "nothing is held", func() bool { return g.budget.held.Load() == 0 })
}

// Heartbeat ------------------------------------------------------------------------------------

func TestAServerThatSaysNothingIsSilentAndThenGone(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "x")
	peer.asked()
	peer.isMute = true
	for range 3 { // of the first it had something to say
		client.ticks <- time.Time{}
	}
	if got := soon(t, "a report", client.reports); got.state != stateConnected || got.reason != "it has said nothing for 1s" {
		t.Errorf("got %+v", got)
	}
	peer.say(frameReady, 0, []byte{linkVersion, 1})
	if got := soon(t, "a report", client.reports); got.state != stateConnected {
		t.Errorf("got %+v", got)
	}
	client.ticks <- time.Time{}
	if got := soon(t, "a report", client.reports); got.state != stateServing {
		t.Errorf("got %+v", got)
	}
	for range 4 {
		client.ticks <- time.Time{}
	}
	client.reporting(t, stateConnected)
	if got := client.reporting(t, stateDown); got.reason != "it has stopped answering" {
		t.Errorf("got %+v", got)
	}
	isRefused(t, soon(t, "the end of a call", done).err, 503, codeClosed, "it has stopped answering")
}

func TestAServerThatAnswersHeartbeatsStays(t *testing.T) {
	server := startLinkServer(t, "")
	go server.serve(echo)
	client := startLink(t, server.path)
	client.reporting(t, stateServing)
	for range 20 {
		client.ticks <- time.Time{}
		waitUntil(t, "it is heard", client.current.Load().wasHeard.Load)
	}
	if len(client.reports) != 0 {
		t.Errorf("it reports %+v", <-client.reports)
	}
}

func TestAServerThatHasNotBegunIsGivenUpToo(t *testing.T) {
	server := startLinkServer(t, "")
	client := startLink(t, server.path)
	soon(t, "a connection", server.peers)
	for range 4 {
		client.ticks <- time.Time{}
	}
	if got := soon(t, "a report", client.reports); got != (health{stateDown, "it has stopped answering"}) {
		t.Errorf("got %+v", got)
	}
}

func TestCallsOfAServerThatDoesNotReadGoElsewhereOrFail(t *testing.T) {
	server := startLinkServer(t, "")
	other := startDouble(t, echo, doubleOptions{}) // which no heartbeat can be late for
	g := start(t, nil, "--backend", linkScheme+server.path, "--backend", other.address, "--stall-timeout", "100ms")
	server.peer(t, 1) // which reads nothing
	g.waitUntilServing(t, 2)
	large := `{"value":["` + strings.Repeat("x", 1<<20) + `"]}`
	var callers sync.WaitGroup
	var elsewhere, failed atomic.Int64
	for range 8 {
		callers.Go(func() {
			switch got := g.post(t, large); got.status {
			case 200:
				elsewhere.Add(1)
			case 503:
				got.isRefusal(t, 503, 3001, "stopped answering")
				failed.Add(1)
			default:
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	callers.Wait()
	if failed.Load() > 4 || elsewhere.Load() < 4 {
		t.Errorf("%d failed, %d went elsewhere", failed.Load(), elsewhere.Load())
	}
	if got := g.post(t, pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// What goes wrong ----------------------------------------------------------------------------

func TestAFailureIsARefusal(t *testing.T) {
	client, peer := startPair(t)
	for _, want := range []refusal{
		{status: 503, code: codeOverloaded, text: "no place", retryAfter: 7},
		{status: 500, code: codeUnknown, text: "internal error of the server"},
		{status: 400, code: -7, text: ""},
	} {
		done := client.asking(context.Background(), "x")
		peer.fail(peer.asked().id, uint16(want.status), int32(want.code), want.text)
		var got *refusal
		if err := soon(t, "an answer", done).err; !errors.As(err, &got) || *got != want {
			t.Errorf("got %+v, want %+v", err, want)
		}
	}
}

func TestAnAnswerThatCannotBeReadIsARefusal(t *testing.T) {
	client, peer := startPair(t)
	for _, body := range []frame{
		{kind: frameAnswer, body: []byte{0xff}},
		{kind: frameFailure, body: []byte("short")},
		{kind: frameFailure, body: []byte("\x00\x00\x00\x00\x00\x00\x00\x00text")},
	} {
		done := client.asking(context.Background(), "x")
		peer.say(body.kind, peer.asked().id, body.body)
		isRefused(t, soon(t, "an answer", done).err, 500, codePackage, "cannot be read")
	}
	done := client.asking(context.Background(), "x")
	peer.answer(peer.asked().id, responseOf("next"))
	if got := soon(t, "an answer", done); got.err != nil {
		t.Error(got.err)
	}
}

func isRefused(t *testing.T, err error, status int, code errorCode, text string) {
	t.Helper()
	var got *refusal
	if !errors.As(err, &got) || got.status != status || got.code != code || !strings.Contains(got.text, text) {
		t.Errorf("got %v; want %d, %d, %q", err, status, code, text)
	}
}

func TestWhoLeavesIsReportedAndForgotten(t *testing.T) {
	client, peer := startPair(t)
	ctx, leave := context.WithCancel(context.Background())
	left := client.asking(ctx, "left")
	id := peer.asked().id
	leave()
	if got := soon(t, "the end of a call", left); !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %+v", got)
	}
	if got := peer.hear(); got.kind != frameCancel || got.id != id || len(got.body) != 0 {
		t.Errorf("heard %+v", got)
	}
	peer.answer(id, responseOf("too late"))
	stays := client.asking(context.Background(), "stays")
	asked := peer.asked()
	if asked.id == id {
		t.Error("the id was used again")
	}
	peer.answer(asked.id, responseOf("in time"))
	if got := soon(t, "an answer", stays); got.err != nil || got.response.Value[0] != "in time" {
		t.Errorf("got %+v", got)
	}
}

func TestADeadlineThatPassesIsReportedToo(t *testing.T) {
	client, peer := startPair(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if got := soon(t, "the end of a call", client.asking(ctx, "x")); !errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("got %+v", got)
	}
	id := peer.asked().id
	if got := peer.hear(); got.kind != frameCancel || got.id != id {
		t.Errorf("heard %+v", got)
	}
}

func TestAnAnswerAtTheMomentThatTheCallerLeavesHarmsNobody(t *testing.T) {
	server := startLinkServer(t, "")
	go server.serve(echo)
	client := startLink(t, server.path)
	client.reporting(t, stateServing)
	var callers sync.WaitGroup
	for number := range 8 {
		callers.Go(func() {
			for turn := range 200 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(turn)*time.Microsecond)
				text := fmt.Sprint(number, turn)
				response, err := client.ask(ctx, requestOf(text), nil, deadline{})
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
	peer.asked()
	peer.asked()
	_ = peer.raw.Close()
	for _, done := range []<-chan outcome{first, second} {
		isRefused(t, soon(t, "the end of a call", done).err, 503, codeClosed, "went away with the request")
	}
}

func TestARequestThatWasNotWrittenHasNotLeft(t *testing.T) {
	raw, _ := net.Pipe()
	conn := newLinkConn(raw)
	answers := make(chan error, 2)
	ask := func() {
		_, err := conn.ask(context.Background(), requestOf("x"), "", nil, deadline{})
		answers <- err
	}
	queued := func() bool {
		conn.lock.Lock()
		defer conn.lock.Unlock()
		return conn.queue.fresh.Len() == 1
	}
	go ask()
	waitUntil(t, "a request is queued", queued)
	conn.take(newLinkBatch()) // as the writer does, before it writes
	go ask()
	waitUntil(t, "another one is queued", queued)
	conn.close(io.EOF)
	conn.close(io.EOF)
	neverLeft, lost := soon(t, "an end", answers), soon(t, "an end", answers)
	if errors.Is(lost, errNeverLeft) {
		neverLeft, lost = lost, neverLeft
	}
	if !errors.Is(neverLeft, errNeverLeft) {
		t.Errorf("got %v", neverLeft)
	}
	isRefused(t, lost, 503, codeClosed, "went away with the request: EOF")
	if ask(); !errors.Is(<-answers, errNeverLeft) {
		t.Error("a closed connection was asked")
	}
}

// Health -------------------------------------------------------------------------------------

func TestALinkKnowsHowTheServerIs(t *testing.T) {
	server := startLinkServer(t, "")
	client := startLink(t, server.path)
	peer := server.peer(t, 0)
	if got := soon(t, "a report", client.reports); got != (health{stateConnected, "it is not ready"}) {
		t.Errorf("got %+v", got)
	}
	done := client.asking(context.Background(), "early")
	peer.answer(peer.asked().id, responseOf("yes"))
	if got := soon(t, "an answer", done); got.err != nil {
		t.Errorf("got %+v", got)
	}
	peer.say(frameReady, 0, []byte{linkVersion, 1})
	if got := soon(t, "a report", client.reports); got.state != stateServing {
		t.Errorf("got %+v", got)
	}
	_ = peer.raw.Close()
	if got := soon(t, "a report", client.reports); got != (health{stateDown, "EOF"}) {
		t.Errorf("got %+v", got)
	}
}

func TestALinkConnectsAgain(t *testing.T) {
	server := startLinkServer(t, "")
	client := startLink(t, server.path)
	for range 3 {
		peer := server.peer(t, 1)
		client.reporting(t, stateServing)
		_ = peer.raw.Close()
		client.reporting(t, stateDown)
	}
}

func TestALinkWaitsForASocket(t *testing.T) {
	path := t.TempDir() + "/0.link"
	client := startLink(t, path)
	if got := soon(t, "a report", client.reports); got.state != stateDown || !strings.Contains(got.reason, "no such file") {
		t.Errorf("got %+v", got)
	}
	if _, err := client.ask(context.Background(), requestOf(""), nil, deadline{}); !errors.Is(err, errNeverLeft) {
		t.Errorf("got %v", err)
	}
	startLinkServer(t, path).peer(t, 1)
	client.reporting(t, stateServing)
}

func TestAServerThatSpeaksOtherwiseIsNotAsked(t *testing.T) {
	for said, text := range map[string]string{
		string(appendHead(nil, 0, frameReady, 0)):                                           "READY of 0 bytes",
		string(append(appendHead(nil, 2, frameReady, 0), 1, 1)):                             "version 1 of the link, this gateway version 2: build the gateway anew",
		string(appendHead(nil, 1<<20, frameReady, 0)):                                       "kind 16 with 1048585 bytes",
		string(appendHead(nil, 0, frameAnswer, 0)):                                          "a frame of kind 17 with 9 bytes",
		string(append(appendHead(nil, 2, frameReady, 0), linkVersion, 1)) + "HTTP/1.1 400 ": "a frame of kind 47 with 1213486160 bytes",
		"\x00\x00\x00\x01\x1012345678":                                                      "with 1 bytes",
	} {
		server := startLinkServer(t, "")
		client := startLink(t, server.path)
		peer := soon(t, "a connection", server.peers)
		_, _ = io.WriteString(peer.raw, said)
		if got := client.reporting(t, stateDown); !strings.Contains(got.reason, text) {
			t.Errorf("%q: %+v", said, got)
		}
	}
}
