package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
)

func TestACallIsAnswered(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "hello")
	asked := peer.Asked()
	if asked.Timeout >= 0 || asked.Trace != "" || asked.Caller != "" || asked.Request.Value[0] != "hello" {
		t.Errorf("asked %+v", asked)
	}
	peer.Answer(asked.ID, gatewaytest.ResponseOf("there"))
	if got := gatewaytest.Soon(t, "an answer", done); got.err != nil || got.text != "there" || got.end.Status != 200 {
		t.Errorf("got %+v", got)
	}
}

func TestACallTellsWhoAsksAndWhatTimeIsLeft(t *testing.T) {
	client, peer := startPair(t)
	for _, test := range []struct {
		deadline    time.Time
		least, most time.Duration
	}{
		{time.Time{}, -1, -1},
		{time.Now().Add(-time.Hour), 0, 0},
		{time.Now().Add(time.Hour), 59 * time.Minute, time.Hour},
	} {
		metadata := AppendField(AppendField(nil, "traceparent", "a"), "x-bin", "\x00\n\xff")
		call := Call{Deadline: test.deadline, Caller: strings.Repeat("c", 300), Metadata: metadata}
		go client.ask(context.Background(), "", call)
		asked := peer.Asked()
		peer.Answer(asked.ID, gatewaytest.ResponseOf(""))
		if asked.Timeout < test.least || asked.Timeout > test.most || asked.Trace != "a" || len(asked.Caller) != 255 ||
			asked.Headers[3] != "\x00\n\xff" {
			t.Errorf("%+v", asked)
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
			if got := client.ask(context.Background(), text, Call{}); got.err != nil || got.text != text {
				t.Errorf("%s: %+v", text, got)
			}
		})
	}
	var asked []gatewaytest.LinkAsked
	for range count {
		asked = append(asked, peer.Asked())
	}
	if client.InFlight() != count {
		t.Errorf("%d in flight", client.InFlight())
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
	client := startClient(t, server.Path)
	client.reporting(t, Serving)
	for _, size := range []int{0, frame.MaxBytes - 10, frame.MaxBytes, 3 * frame.MaxBytes, 20 << 20, 1} {
		text := strings.Repeat("x", size)
		got := gatewaytest.Soon(t, "an answer", client.asking(context.Background(), text))
		if got.err != nil || got.text != text {
			t.Errorf("%d bytes: %v", size, got.err)
		}
	}
}

func TestAFailureIsHowACallEnded(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "x")
	want := frame.Ended{Code: 8, Status: 503, ErrNo: 3004, RetryAfter: 7, Text: "no place", Trailers: Fields("a\nb\n")}
	peer.Write(frame.AppendEnd(frame.Append(nil, frame.Headers, 0, 1, []byte("c\nd\n")), peer.Asked().ID, want, nil))
	got := gatewaytest.Soon(t, "an answer", done)
	if got.err != nil || got.end.Code != 8 || got.end.Status != 503 || got.end.ErrNo != 3004 || got.end.RetryAfter != 7 ||
		got.end.Text != "no place" || got.end.Trailers.Get("a") != "b" || got.end.Headers.Get("c") != "d" {
		t.Errorf("got %+v", got)
	}
}

func TestWhatCannotBeAskedIsSaidAtOnce(t *testing.T) {
	client, _ := startPair(t)
	for _, test := range []struct {
		call Call
		want error
	}{
		{Call{Method: "none"}, ErrNoMethod},
		{Call{Method: gatewaytest.LinkStream}, ErrNoMethod},
		{Call{Method: "inference", Metadata: make([]byte, MaxMetadataBytes+1)}, ErrMetadata},
	} {
		if _, err := client.Unary(context.Background(), &test.call, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", test.call.Method, err)
		}
	}
	if _, err := client.Open(context.Background(), &Call{Method: "inference"}); !errors.Is(err, ErrNoMethod) {
		t.Errorf("got %v", err)
	}
}

func TestALongAnswerIsCounted(t *testing.T) {
	client, peer := startPair(t)
	full := errors.New("no room")
	done := make(chan outcome, 1)
	go func() {
		done <- client.ask(context.Background(), "x", Call{Budget: &budget{left: 200_000, full: full}})
	}()
	asked := peer.Asked()
	go peer.Answer(asked.ID, gatewaytest.ResponseOf(strings.Repeat("x", 8<<20)))
	if got := gatewaytest.Soon(t, "an end", done); !errors.Is(got.err, full) {
		t.Errorf("got %+v", got)
	}
	if got := peer.Hear(); got.Kind != frame.Reset || got.ID != asked.ID {
		t.Errorf("heard %+v", got)
	}
}

type budget struct {
	left int64
	full error
}

func (b *budget) Need(bytes int64) error {
	if b.left -= bytes; b.left < 0 {
		return b.full
	}
	return nil
}

// Faults -------------------------------------------------------------------------------------

func TestWhatTheServerDropsIsRepeatedOrNot(t *testing.T) {
	client, peer := startPair(t)
	for reason, want := range map[Reason]error{
		frame.ReasonRefused: ErrNeverLeft, frame.ReasonTooLarge: ErrTooLarge, frame.ReasonNoMethod: ErrNoMethod,
	} {
		done := client.asking(context.Background(), "x")
		peer.Write(frame.AppendReset(nil, peer.Asked().ID, reason, ""))
		if got := gatewaytest.Soon(t, "an end", done); !errors.Is(got.err, want) {
			t.Errorf("%d: %+v", reason, got)
		}
	}
	done := client.asking(context.Background(), "x")
	peer.Write(frame.AppendReset(nil, peer.Asked().ID, frame.ReasonBroken, "why"))
	var reset *ResetError
	if got := gatewaytest.Soon(t, "an end", done); !errors.As(got.err, &reset) || reset.Text != "why" {
		t.Errorf("got %+v", got)
	}
}

func TestAnEndThatCannotBeReadEndsItsCall(t *testing.T) {
	client, peer := startPair(t)
	for _, payload := range []string{"short", strings.Repeat("\x00", frame.EndBytes), "\x00\x00\xc8\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00"} {
		done := client.asking(context.Background(), "x")
		peer.Write(frame.Append(nil, frame.End, 0, peer.Asked().ID, []byte(payload)))
		var reset *ResetError
		if got := gatewaytest.Soon(t, "an end", done); !errors.As(got.err, &reset) {
			t.Errorf("got %+v", got)
		}
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
	if got := peer.Hear(); got.Kind != frame.Reset || got.ID != id || got.Body.Data[0] != byte(frame.ReasonCanceled) {
		t.Errorf("heard %+v", got)
	}
	peer.Say(id, []byte("too late"))
	peer.Answer(id, gatewaytest.ResponseOf("too late"))
	stays := client.asking(context.Background(), "stays")
	asked := peer.Asked()
	if asked.ID <= id {
		t.Error("the id was used again")
	}
	peer.Answer(asked.ID, gatewaytest.ResponseOf("in time"))
	if got := gatewaytest.Soon(t, "an answer", stays); got.err != nil || got.text != "in time" {
		t.Errorf("got %+v", got)
	}
}

func TestAnAnswerAtTheMomentThatTheCallerLeavesHarmsNobody(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	go server.Serve(gatewaytest.Echo)
	client := startClient(t, server.Path)
	client.reporting(t, Serving)
	var callers sync.WaitGroup
	for number := range 8 {
		callers.Go(func() {
			for turn := range 200 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(turn)*time.Microsecond)
				text := fmt.Sprint(number, turn)
				if got := client.ask(ctx, text, Call{}); got.err == nil && got.text != text {
					t.Errorf("%s: %v", text, got.text)
				}
				cancel()
			}
		})
	}
	callers.Wait()
}

func TestAConnectionThatBreaksTakesItsCallsAlong(t *testing.T) {
	client, peer := startPair(t)
	first, second := client.asking(context.Background(), "a"), client.asking(context.Background(), "b")
	peer.Asked()
	peer.Asked()
	_ = peer.Raw.Close()
	for _, done := range []<-chan outcome{first, second} {
		var lost *LostError
		if got := gatewaytest.Soon(t, "the end of a call", done); !errors.As(got.err, &lost) {
			t.Errorf("got %+v", got)
		}
	}
}

func TestACallThatWasNotWrittenHasNotLeft(t *testing.T) {
	raw, _ := net.Pipe()
	conn := newTestConn(raw)
	written, queued := newTestCall("x"), newTestCall("x")
	_ = conn.begin(written)
	conn.take(nil) // as the writer does, before it writes
	_ = conn.begin(queued)
	conn.close(io.EOF)
	conn.close(io.EOF)
	var lost *LostError
	if !errors.Is(queued.err, ErrNeverLeft) || !errors.As(written.err, &lost) || lost.Why != "EOF" {
		t.Errorf("got %v and %v", queued.err, written.err)
	}
	if err := conn.begin(newTestCall("x")); !errors.Is(err, ErrNeverLeft) {
		t.Errorf("a closed connection was asked: %v", err)
	}
}

// Health -------------------------------------------------------------------------------------

func TestALinkKnowsHowTheServerIs(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	client := startClient(t, server.Path)
	peer := server.Peer(t, 0)
	if got := gatewaytest.Soon(t, "a report", client.reports); got != (State{Connected, "it is not ready"}) {
		t.Errorf("got %+v", got)
	}
	done := client.asking(context.Background(), "early")
	peer.Answer(peer.Asked().ID, gatewaytest.ResponseOf("yes"))
	if got := gatewaytest.Soon(t, "an answer", done); got.err != nil {
		t.Errorf("got %+v", got)
	}
	peer.State(true)
	peer.State(true) // the same state again is not reported
	if got := gatewaytest.Soon(t, "a report", client.reports); got.Phase != Serving {
		t.Errorf("got %+v", got)
	}
	peer.Write(frame.AppendState(nil, true, 7))
	gatewaytest.WaitUntil(t, "it is known how many calls there are", func() bool { return client.AtServer() == 7 })
	_ = peer.Raw.Close()
	if got := gatewaytest.Soon(t, "a report", client.reports); got != (State{Down, "EOF"}) {
		t.Errorf("got %+v", got)
	}
}

func TestAServerThatLeavesIsAskedNoMore(t *testing.T) {
	client, peer := startPair(t)
	first, second := client.asking(context.Background(), "a"), client.asking(context.Background(), "b")
	id := peer.Asked().ID
	peer.Asked()
	peer.Write(frame.AppendGoaway(nil, id, "it stops"))
	client.reporting(t, Connected)
	if got := client.ask(context.Background(), "c", Call{}); !errors.Is(got.err, ErrNeverLeft) {
		t.Errorf("got %+v", got)
	}
	peer.Answer(id, gatewaytest.ResponseOf("done"))
	var ends []outcome
	for _, done := range []<-chan outcome{first, second} {
		ends = append(ends, gatewaytest.Soon(t, "an end", done))
	}
	answered, refused := ends[0], ends[1]
	if answered.err != nil {
		answered, refused = refused, answered
	}
	if answered.text != "done" || !errors.Is(refused.err, ErrNeverLeft) {
		t.Errorf("got %+v and %+v", answered, refused)
	}
}

func TestALinkConnectsAgain(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	client := startClient(t, server.Path)
	for range 3 {
		peer := server.Peer(t, 1)
		client.reporting(t, Serving)
		_ = peer.Raw.Close()
		client.reporting(t, Down)
	}
}

func TestALinkWaitsForASocket(t *testing.T) {
	path := t.TempDir() + "/0.link"
	client := startClient(t, path)
	if got := gatewaytest.Soon(t, "a report", client.reports); got.Phase != Down || !strings.Contains(got.Reason, "no such file") {
		t.Errorf("got %+v", got)
	}
	if got := client.ask(context.Background(), "", Call{}); !errors.Is(got.err, ErrNeverLeft) || client.Peer() != nil {
		t.Errorf("got %+v", got)
	}
	gatewaytest.StartLinkServer(t, path).Peer(t, 1)
	client.reporting(t, Serving)
}

func TestAServerThatSpeaksOtherwiseIsNotAsked(t *testing.T) {
	hello := func(version int, credit int64) string {
		limits := frame.Limits{CallCredit: credit, StreamCredit: credit}
		return string(frame.AppendGreeting(nil, frame.Greeting{Version: version, Limits: limits}))
	}
	ours := hello(frame.Version, 1)
	for said, text := range map[string]string{
		"\x00\x00\x00\x0b\x10\x00\x00\x00\x00\x00\x00\x00\x00\x03\x01": "unexpected EOF", // a READY of version 3
		hello(3, 1):             "version 3 of the link, this gateway version 7: rebuild the gateway",
		hello(frame.Version, 0): "without credit",
		string(frame.Append(nil, frame.Hello, 0, 0, []byte("{"))):  "cannot be read",
		string(frame.AppendGoaway(nil, 0, "its secret is wrong")):  "refuses the link: its secret is wrong",
		string(frame.AppendState(nil, true, 0)):                    "does not begin with a HELLO",
		string(frame.AppendHead(nil, 1<<20, frame.Hello, 0, 0, 0)): "kind 1 with 1048576 bytes",
		ours + "HTTP/1.1 400 Bad Request":                          "kind 47",
		ours + string(frame.Append(nil, frame.Data, 0, 7, nil)):    "it answers 7, which was never asked",
		ours + string(frame.Append(nil, frame.Open, 0, 0, nil)):    "kind 2 in the midst",
		ours + string(frame.Append(nil, frame.Credit, 0, 0, nil)):  "a CREDIT of 0 bytes",
		ours + string(frame.Append(nil, frame.State, 0, 0, nil)):   "a STATE of 0 bytes",
		ours + string(frame.Append(nil, frame.Goaway, 0, 0, nil)):  "a GOAWAY of 0 bytes",
	} {
		server := gatewaytest.StartLinkServer(t, "")
		client := startClient(t, server.Path)
		peer := gatewaytest.Soon(t, "a connection", server.Peers)
		if _, err := frame.Read(bufio.NewReader(peer.Raw)); err != nil { // its HELLO
			t.Error(err)
		}
		_, _ = io.WriteString(peer.Raw, said)
		_ = peer.Raw.(*net.UnixConn).CloseWrite()
		if got := client.reporting(t, Down); !strings.Contains(got.Reason, text) {
			t.Errorf("%q: %+v", said, got)
		}
	}
}

// Heartbeat ----------------------------------------------------------------------------------

func TestAServerThatSaysNothingIsSilentAndThenGone(t *testing.T) {
	client, peer := startPair(t)
	done := client.asking(context.Background(), "x")
	peer.Asked()
	peer.IsMute = true
	for range 3 { // of the first it had something to say
		client.ticks <- time.Time{}
	}
	if got := gatewaytest.Soon(t, "a report", client.reports); got.Phase != Connected || got.Reason != "it has said nothing for 1s" {
		t.Errorf("got %+v", got)
	}
	peer.State(true)
	gatewaytest.WaitUntil(t, "it is heard", client.current.Load().wasHeard.Load)
	client.ticks <- time.Time{}
	if got := gatewaytest.Soon(t, "a report", client.reports); got.Phase != Serving {
		t.Errorf("got %+v", got)
	}
	for range 4 {
		client.ticks <- time.Time{}
	}
	client.reporting(t, Connected)
	if got := client.reporting(t, Down); got.Reason != "it has stopped answering" {
		t.Errorf("got %+v", got)
	}
	var lost *LostError
	if got := gatewaytest.Soon(t, "the end of a call", done); !errors.As(got.err, &lost) {
		t.Errorf("got %+v", got)
	}
}

func TestAServerThatAnswersHeartbeatsStays(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	go server.Serve(gatewaytest.Echo)
	client := startClient(t, server.Path)
	client.reporting(t, Serving)
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
	client := startClient(t, server.Path)
	gatewaytest.Soon(t, "a connection", server.Peers)
	for range 4 {
		client.ticks <- time.Time{}
	}
	if got := gatewaytest.Soon(t, "a report", client.reports); got != (State{Down, "it has stopped answering"}) {
		t.Errorf("got %+v", got)
	}
}
