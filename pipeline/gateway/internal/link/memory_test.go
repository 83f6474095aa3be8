//go:build linux

package link

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link/frame"
)

const regionBytes = 1 << 20

// startSharing returns a client, and the server's end of its link, with memory that it shares: the client's region is the
// first of two.
func startSharing(t *testing.T) (*watched, *gatewaytest.LinkPeer, *os.File) {
	t.Helper()
	file := gatewaytest.MemoryFile(t, 2*regionBytes)
	server := gatewaytest.StartLinkServer(t, "")
	client := startClient(t, server.Path)
	peer := gatewaytest.Soon(t, "a connection", server.Peers)
	limits := frame.Limits{CallCredit: frame.CallCredit, StreamCredit: frame.StreamCredit}
	said := frame.AppendGreeting(nil, frame.Greeting{
		Version: frame.Version, Limits: limits, Memory: frame.Memory{Region: 0, RegionBytes: regionBytes},
		Methods: []frame.Entry{{ID: 1, Name: "inference"}},
	})
	end, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = end.Close(), held.Close() })
	if _, _, err := peer.Raw.(*net.UnixConn).WriteMsgUnix(said, unix.UnixRights(int(file.Fd()), int(held.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	peer.State(true)
	client.reporting(t, Serving)
	if got := hearFreed(t, peer); got != 0 {
		t.Errorf("it has read %d", got)
	}
	return client, peer, file
}

// hearFreed returns which answer the client has read; 0: it says that it reads and writes the memory.
func hearFreed(t *testing.T, peer *gatewaytest.LinkPeer) uint64 {
	t.Helper()
	for {
		got, err := frame.Read(peer.Source)
		if err != nil {
			t.Fatal(err)
		}
		if got.Kind == frame.Freed {
			return got.ID
		}
	}
}

func TestAMessageInABlockIsNotSentButWhereItLies(t *testing.T) {
	client, peer, file := startSharing(t)
	block := client.Place(100_000, 4)
	copy(block.Data, strings.Repeat("x", 100_000))
	done := make(chan error, 1)
	go func() {
		answer, err := client.Unary(context.Background(), &Call{Method: "inference", Block: block}, block.Data)
		answer.Release()
		done <- err
	}()
	got, err := frame.Read(peer.Source)
	for err == nil && got.Kind != frame.Open {
		got, err = frame.Read(peer.Source)
	}
	if err != nil || !got.Has(frame.Placed) {
		t.Fatalf("%+v, %v", got, err)
	}
	_, _, data, err := frame.ReadOpen(got.Body.Data)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := frame.ReadParts(data)
	if err != nil || len(parts) != 1 || parts[0].Size != 100_000 || (parts[0].Offset+4)%64 != 0 {
		t.Fatalf("%+v, %v", parts, err)
	}
	read := make([]byte, 3)
	if _, err := file.ReadAt(read, int64(parts[0].Offset)); err != nil || string(read) != "xxx" {
		t.Errorf("%q, %v", read, err)
	}
	peer.AnswerBytes(got.ID, []byte("short"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	block.Release()
	memory := client.current.Load().memory
	if memory.InUse() == 0 {
		t.Error("it is free though the server reads it")
	}
	peer.Write(frame.AppendFreed(nil, 0, parts[0].Offset))
	gatewaytest.WaitUntil(t, "it is free", func() bool { return memory.InUse() == 0 })
}

func TestAnAnswerInMemoryIsReadThereAndTheServerIsTold(t *testing.T) {
	client, peer, file := startSharing(t)
	if _, err := file.WriteAt([]byte("in memory"), regionBytes+64); err != nil {
		t.Fatal(err)
	}
	answers := make(chan Answer, 1)
	ask := func(ctx context.Context) {
		answer, err := client.Unary(ctx, &Call{Method: "inference"}, []byte("x"))
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		answers <- answer
	}
	end := func(id uint64) {
		data := frame.AppendPlace(frame.AppendBytes(nil, []byte("here, ")), 1, 64, 9)
		peer.Write(frame.AppendFlaggedEnd(nil, frame.Message|frame.Last|frame.Placed, id, frame.Ended{Status: 200}, data))
	}
	go ask(context.Background())
	id := peer.AskedBytes().ID
	end(id)
	answer := <-answers
	if got := string(bytes.Join(answer.Parts, nil)); got != "here, in memory" || answer.Size() != 15 {
		t.Errorf("%q", got)
	}
	answer.Release()
	go ask(context.Background()) // with the next frame
	if got := hearFreed(t, peer); got != id {
		t.Errorf("it has read %d, not %d", got, id)
	}
	next := id + 1
	end(next)
	answer = <-answers
	if got := string(answer.Detach()); got != "here, in memory" {
		t.Errorf("%q", got)
	}
	ctx, leave := context.WithCancel(context.Background())
	go ask(ctx)
	if got := hearFreed(t, peer); got != next {
		t.Errorf("it has read %d, not %d", got, next)
	}
	leave()
	<-answers
	end(id + 2) // which nobody waits for
	peer.Write(frame.Append(nil, frame.Ping, 0, 0, nil))
	if got := hearFreed(t, peer); got != id+2 {
		t.Errorf("it has read %d, not %d", got, id+2)
	}
}

func TestMemoryIsClosedWithItsConnection(t *testing.T) {
	client, peer, _ := startSharing(t)
	memory := client.current.Load().memory
	block := client.Place(100, 0)
	_ = peer.Raw.Close()
	client.reporting(t, Down)
	block.Data[0] = 1
	block.Release()
	if memory.Place(1, 0) != nil || client.Place(1, 0) != nil {
		t.Error("it gives out memory of a server that is gone")
	}
}

func TestWhatFreesMemoryThatNobodyHasIsABreach(t *testing.T) {
	client, peer, _ := startSharing(t)
	peer.Write(frame.AppendFreed(nil, 0, 640))
	if got := client.reporting(t, Down); !strings.Contains(got.Reason, "it frees memory at 640") {
		t.Errorf("%+v", got)
	}
}
