package link

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/link/frame"
)

const plenty = 1 << 40

func newTestConn(raw net.Conn) *conn {
	conn := newConn(raw)
	conn.limits = frame.Limits{CallCredit: plenty, StreamCredit: plenty}
	return conn
}

func newTestCall(text string) *call {
	return &call{wake: make(chan struct{}, 1), message: []byte(text), hasMessage: true, endsSending: true}
}

// framesOf returns the frames of a batch.
func framesOf(t *testing.T, batch []byte) (found []frame.Frame) {
	t.Helper()
	for source := bufio.NewReader(bytes.NewReader(batch)); ; {
		got, err := frame.Read(source)
		if err != nil {
			return found
		}
		found = append(found, got)
	}
}

func TestWhatIsQueuedLeavesInOneGo(t *testing.T) {
	conn := newTestConn(nil)
	for range 3 {
		if err := conn.begin(newTestCall("x")); err != nil {
			t.Error(err)
		}
	}
	got := framesOf(t, conn.take(nil))
	if len(got) != 3 || len(conn.wake) != 1 || got[2].Flags != frame.Message|frame.Last {
		t.Errorf("%d frames, woken %d times", len(got), len(conn.wake))
	}
	if left := conn.take(nil); len(left) != 0 {
		t.Errorf("%d bytes were left", len(left))
	}
}

func TestASmallCallWaitsForNoLargeOne(t *testing.T) {
	conn := newTestConn(nil)
	size := 10 << 20
	for _, letter := range []string{"a", "b"} {
		_ = conn.begin(newTestCall(strings.Repeat(letter, size)))
	}
	messages, batches := map[uint64][]byte{}, 0
	read := func(batch []byte) {
		for _, each := range framesOf(t, batch) {
			data := each.Body.Data
			if each.Kind == frame.Open {
				_, _, data, _ = frame.ReadOpen(data)
			}
			messages[each.ID] = append(messages[each.ID], data...)
		}
	}
	for batch := conn.take(nil); len(batch) > 0; batch = conn.take(nil) {
		if len(batch) > batchBytes+2*frame.MaxBytes {
			t.Fatalf("a batch of %d bytes", len(batch))
		}
		read(batch)
		small := newTestCall("small")
		_ = conn.begin(small)
		next := conn.take(nil)
		if got := framesOf(t, next)[0]; got.ID != small.id {
			t.Fatalf("batch %d begins with %d, not %d", batches, got.ID, small.id)
		}
		read(next)
		batches++
	}
	if batches < size/batchBytes || len(messages) != 2+batches {
		t.Errorf("%d batches, %d messages", batches, len(messages))
	}
	for id, letter := range []string{"a", "b"} {
		if string(messages[uint64(id+1)]) != strings.Repeat(letter, size) {
			t.Errorf("the message of %s is another one", letter)
		}
	}
}

func TestLargeCallsGoOnBesideAFloodOfSmallOnes(t *testing.T) {
	conn := newTestConn(nil)
	large := newTestCall(strings.Repeat("a", 10*frame.MaxBytes))
	_ = conn.begin(large)
	for range 12 {
		for range batchBytes / 16 {
			_ = conn.begin(newTestCall("small"))
		}
		conn.take(nil)
	}
	if large.in != nil {
		t.Error("the large one waits")
	}
}

func TestWhoLeavesTakesAlongWhatIsQueued(t *testing.T) {
	conn := newTestConn(nil)
	waiting, halfway := newTestCall(strings.Repeat("a", 1<<20)), newTestCall(strings.Repeat("b", 1<<20))
	_ = conn.begin(halfway)
	conn.take(nil)
	_ = conn.begin(waiting)
	for _, each := range []*call{waiting, halfway} {
		if !conn.forget(each) || each.message != nil || conn.forget(each) {
			t.Error("it is still there")
		}
	}
	if len(conn.calls) != 0 || conn.queue.begun.first != nil || conn.queue.fresh.first != nil {
		t.Errorf("%d calls", len(conn.calls))
	}
	got := framesOf(t, conn.take(nil)) // the one word is for the one of which something left
	if len(got) != 1 || got[0].Kind != frame.Reset || got[0].ID != halfway.id {
		t.Errorf("%+v", got)
	}
}

func TestDataWaitForCredit(t *testing.T) {
	conn := newTestConn(nil)
	conn.limits.CallCredit = frame.MaxBytes + 1
	large := newTestCall(strings.Repeat("a", 4*frame.MaxBytes))
	_ = conn.begin(large)
	all := func() (bytes int) {
		for batch := conn.take(nil); len(batch) > 0; batch = conn.take(nil) {
			for _, each := range framesOf(t, batch) {
				if each.Kind == frame.Data {
					bytes += len(each.Body.Data)
				}
			}
		}
		return bytes
	}
	if sent := all(); sent != frame.MaxBytes+1 {
		t.Errorf("%d bytes of DATA", sent)
	}
	_ = conn.begin(newTestCall("small")) // which needs none
	if got := framesOf(t, conn.take(nil)); len(got) != 1 || !got[0].Has(frame.Last) {
		t.Errorf("%+v", got)
	}
	for range 2 {
		body := frame.NewBuffer(4)
		copy(body.Data, "\x00\x01\x00\x00") // 64 KiB
		if err := conn.deliver(frame.Frame{Kind: frame.Credit, ID: large.id, Body: body}); err != nil {
			t.Error(err)
		}
	}
	left := 4*frame.MaxBytes - (frame.MaxBytes - frame.OpenBytes) - (frame.MaxBytes + 1)
	if sent := all(); sent != min(left, 2*frame.MaxBytes) {
		t.Errorf("%d bytes of DATA of %d", sent, left)
	}
}

func TestTheTimeThatIsLeftIsThatOfTheWriting(t *testing.T) {
	conn := newTestConn(nil)
	each := newTestCall("x")
	each.opened.Deadline = time.Now().Add(time.Hour)
	_ = conn.begin(each)
	each.opened.Deadline = each.opened.Deadline.Add(-2 * time.Hour) // as if it had waited for so long
	left, _, _, err := frame.ReadOpen(framesOf(t, conn.take(nil))[0].Body.Data)
	if err != nil || left != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestAServerHasNoMoreCallsThanItTakes(t *testing.T) {
	conn := newTestConn(nil)
	conn.limits.Calls = 1
	_ = conn.begin(newTestCall("x"))
	if err := conn.begin(newTestCall("x")); !errors.Is(err, ErrNeverLeft) {
		t.Errorf("got %v", err)
	}
}
