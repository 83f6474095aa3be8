package link

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
)

func TestAStreamHasMessagesBothWays(t *testing.T) {
	client, peer := startPair(t)
	stream := client.open(t)
	id := peer.Hear().ID
	for _, text := range []string{"a", "", strings.Repeat("x", 2*frame.MaxBytes-2)} {
		go func() { _ = stream.Send([]byte(text)) }()
		if got := peer.Hear(); got.ID != id || string(got.Body.Data) != text || got.Has(frame.Last) {
			t.Errorf("%d bytes: %+v", len(text), got)
		}
		go peer.Say(id, []byte(text))
		if got, err := stream.Recv(); err != nil || string(got) != text {
			t.Errorf("%d bytes: %v", len(got), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if got := peer.Hear(); !got.Has(frame.Last) || got.Has(frame.Message) {
		t.Errorf("heard %+v", got)
	}
	peer.Write(frame.AppendEnd(nil, id, frame.Ended{Code: 3, Status: 400, Text: "why"}, []byte("last")))
	if got, err := stream.Recv(); err != nil || string(got) != "last" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := stream.Recv(); err != io.EOF || stream.End().Code != 3 || stream.End().Text != "why" {
		t.Errorf("%v, %+v", err, stream.End())
	}
	if stream.Send(nil) != io.EOF || stream.CloseSend() != io.EOF {
		t.Error("a stream that has ended accepts messages")
	}
}

func TestAMessageWaitsUntilTheServerHasCreditForIt(t *testing.T) {
	client, peer := startPair(t)
	stream := client.open(t)
	id := peer.Hear().ID
	sent := make(chan error, 1)
	go func() { sent <- stream.Send(make([]byte, 2*frame.StreamCredit)) }()
	for got := 0; got < frame.StreamCredit; {
		each, err := frame.Read(peer.Source) // which gives nothing back
		if err != nil {
			t.Fatal(err)
		}
		got += len(each.Body.Data)
	}
	if len(sent) != 0 {
		t.Error("more was sent than there was credit for")
	}
	peer.Write(frame.AppendCredit(nil, id, frame.StreamCredit))
	for got := 0; got < frame.StreamCredit; {
		each, err := frame.Read(peer.Source)
		if err != nil {
			t.Fatal(err)
		}
		got += len(each.Body.Data)
	}
	if err := gatewaytest.Soon(t, "the end of a message", sent); err != nil {
		t.Error(err)
	}
}

func TestAStreamThatIsNotReadGivesNoCredit(t *testing.T) {
	client, peer := startPair(t)
	stream := client.open(t)
	id := peer.Hear().ID
	const count = frame.StreamCredit / frame.MaxBytes
	for range count {
		peer.Write(frame.Append(nil, frame.Data, frame.Message, id, make([]byte, frame.MaxBytes)))
	}
	for range count {
		if got, err := stream.Recv(); err != nil || len(got) != frame.MaxBytes {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	back := int64(0)
	for back < frame.StreamCredit {
		got, err := frame.Read(peer.Source)
		if err != nil || got.Kind != frame.Credit || got.ID != id {
			t.Fatalf("%+v, %v", got, err)
		}
		bytes, _ := frame.ReadCredit(got.Body.Data)
		back += bytes
	}
	for range count + 1 { // one too many
		peer.Write(frame.Append(nil, frame.Data, frame.Message, id, make([]byte, frame.MaxBytes)))
	}
	if got := peer.Hear(); got.Kind != frame.Reset || got.Body.Data[0] != byte(frame.ReasonOverrun) {
		t.Errorf("heard %+v", got)
	}
	var reset *ResetError
	for err := error(nil); !errors.As(err, &reset); {
		if _, err = stream.Recv(); errors.Is(err, io.EOF) {
			t.Fatal("it ended well")
		}
	}
}

func TestAStreamEndsWithItsContextAndWithClose(t *testing.T) {
	client, peer := startPair(t)
	for _, isClosed := range []bool{true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := client.Open(ctx, &Call{Method: gatewaytest.LinkStream})
		if err != nil {
			t.Fatal(err)
		}
		id := peer.Hear().ID
		ended := make(chan error, 1)
		go func() {
			_, err := stream.Recv()
			ended <- err
		}()
		if isClosed {
			stream.Close()
		} else {
			cancel()
		}
		if err := gatewaytest.Soon(t, "the end of a stream", ended); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if got := peer.Hear(); got.Kind != frame.Reset || got.ID != id {
			t.Errorf("heard %+v", got)
		}
		stream.Close()
		cancel()
	}
	if calls, messages := client.Held(); calls != 0 || messages != 0 {
		t.Errorf("%d calls, %d messages", calls, messages)
	}
}

func TestWhoSendsHearsThatTheCallHasEnded(t *testing.T) {
	client, peer := startPair(t)
	stream := client.open(t)
	id := peer.Hear().ID
	sent := make(chan error, 1)
	go func() { sent <- stream.Send(make([]byte, 2*frame.StreamCredit)) }()
	if _, err := frame.Read(peer.Source); err != nil {
		t.Error(err)
	}
	peer.Write(frame.AppendEnd(nil, id, frame.Ended{Status: 200}, nil))
	if err := gatewaytest.Soon(t, "the end of a message", sent); err != io.EOF {
		t.Errorf("got %v", err)
	}
	if _, err := stream.Recv(); err != io.EOF || stream.End().Status != 200 {
		t.Errorf("%v, %+v", err, stream.End())
	}
}
