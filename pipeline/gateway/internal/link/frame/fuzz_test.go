package frame

import (
	"bytes"
	"testing"
	"time"
)

// FuzzBodies reads what a peer may send as the body of a frame of each kind: no reader panics, or returns more than it got.
func FuzzBodies(f *testing.F) {
	whole, left := AppendOpen(nil, 0, 1, 7, &Opened{}, time.Now(), []byte("message"))
	f.Add(append(whole, left...)[HeadBytes:])
	f.Add(AppendEnd(nil, 7, Ended{}, []byte("message"))[HeadBytes:])
	f.Add(AppendFreed(nil, 7, 1, 2, 3)[HeadBytes:])
	f.Add(AppendBytes(AppendPlace(nil, 1, 2, 3), []byte("piece")))
	f.Add(AppendReset(nil, 7, 1, "text")[HeadBytes:])
	f.Add(AppendState(nil, true, 9)[HeadBytes:])
	f.Add(AppendGoaway(nil, 7, "text")[HeadBytes:])
	f.Add(AppendCredit(nil, 7, 64)[HeadBytes:])
	f.Fuzz(func(t *testing.T, body []byte) {
		given := bytes.Clone(body)
		if _, _, data, err := ReadOpen(body); err == nil && len(data) > len(body) {
			t.Fatalf("a message of %d bytes in %d", len(data), len(body))
		}
		if _, data, err := ReadEnd(body); err == nil && len(data) > len(body) {
			t.Fatalf("an answer of %d bytes in %d", len(data), len(body))
		}
		if offsets, err := ReadFreed(body); err == nil && 8*len(offsets) > len(body) {
			t.Fatalf("%d offsets in %d bytes", len(offsets), len(body))
		}
		if parts, err := ReadParts(body); err == nil && len(parts) > len(body) {
			t.Fatalf("%d parts in %d bytes", len(parts), len(body))
		}
		_, _ = ReadReset(body)
		_, _ = ReadCredit(body)
		_, _, _ = ReadState(body)
		_, _, _ = ReadGoaway(body)
		if !bytes.Equal(given, body) {
			t.Fatal("a reader changed what it read")
		}
	})
}
