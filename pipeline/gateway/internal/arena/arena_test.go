//go:build linux

package arena

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pipeline/gateway/internal/gatewaytest"
)

const regionBytes = 256 << 20

// opened returns a memory whose own region is the second one of three, and its file.
func opened(t *testing.T) (*Memory, *os.File) {
	t.Helper()
	m, file, _ := openedAndHeld(t)
	return m, file
}

// openedAndHeld also returns what is at its end when all is unmapped.
func openedAndHeld(t *testing.T) (*Memory, *os.File, *os.File) {
	t.Helper()
	file := gatewaytest.MemoryFile(t, 3*regionBytes)
	end, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end.Close() })
	ours, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(os.NewFile(uintptr(ours), "ours"), held, 1, regionBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, file, end
}

func TestTheServerIsToldWhenAllIsUnmappedAndNotBefore(t *testing.T) {
	m, _, end := openedAndHeld(t)
	block := m.Place(100, 0)
	m.Close()
	isTold := func() bool {
		found := []unix.PollFd{{Fd: int32(end.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(found, 0); err != nil {
			t.Fatal(err)
		}
		return found[0].Revents&unix.POLLHUP != 0
	}
	block.Data[0] = 1
	if isTold() {
		t.Error("the server is notified while a block is written")
	}
	if block.Release(); !isTold() {
		t.Error("the server is not notified")
	}
}

func TestWhatIsWrittenToABlockIsWhereTheServerIsTold(t *testing.T) {
	m, file := opened(t)
	for _, lead := range []int{0, 1, 63, 64, 100} {
		b := m.Place(1000, lead)
		copy(b.Data, bytes.Repeat([]byte{7}, 1000))
		region, offset, size := b.Where(b.Data[lead:])
		if region != 1 || offset%Alignment != 0 || size != uint64(1000-lead) {
			t.Errorf("lead %d: region %d, offset %d, size %d", lead, region, offset, size)
		}
		got := make([]byte, 2)
		if _, err := file.ReadAt(got, regionBytes+int64(offset)); err != nil || got[0] != 7 {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func TestABlockIsFreeWhenBothSidesHaveLetGoOfIt(t *testing.T) {
	m, _ := opened(t)
	for _, serverFirst := range []bool{false, true} {
		b := m.Place(100, 5)
		_, offset, _ := b.Where(b.Data)
		b.Told()
		first, second := b.Release, func() {
			if err := m.Freed(offset); err != nil {
				t.Error(err)
			}
		}
		if serverFirst {
			first, second = second, first
		}
		if first(); m.InUse() == 0 {
			t.Error("it is free though one of them holds it")
		}
		if second(); m.InUse() != 0 {
			t.Errorf("%d bytes are in use", m.InUse())
		}
	}
	if m.Freed(0) == nil {
		t.Error("what nobody has is freed")
	}
}

func TestRoomIsUsedAgainAndEnds(t *testing.T) {
	m, _ := opened(t)
	a, b, c := m.Place(100<<20, 0), m.Place(100<<20, 0), m.Place(50<<20, 0)
	if a == nil || b == nil || c == nil || m.Place(100<<20, 0) != nil {
		t.Fatal("not as much room as there is")
	}
	b.Release()
	if again := m.Place(90<<20, 0); again == nil || again.offset != 100<<20 {
		t.Errorf("%+v", again)
	}
	a.Release()
	c.Release()
	if m.Place(regionBytes+1, 0) != nil {
		t.Error("more than there is")
	}
}

func TestMemoryGoesBackToTheSystemInBulk(t *testing.T) {
	m, file := opened(t)
	b := m.Place(128<<20, 0)
	for at := 0; at < len(b.Data); at += pageBytes {
		b.Data[at] = 1
	}
	held := func() int64 {
		var stat unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512
	}
	if held() < 128<<20 {
		t.Fatalf("%d bytes", held())
	}
	if b.Release(); held() > mostKept {
		t.Errorf("%d bytes are held", held())
	}
}

func TestAnswersAreReadInPlaceAlsoWhenTheServerIsGone(t *testing.T) {
	m, file := opened(t)
	if _, err := file.WriteAt([]byte("answer"), 2*regionBytes+10); err != nil {
		t.Fatal(err)
	}
	view, err := m.View(2, 10, 6)
	if err != nil || string(view) != "answer" {
		t.Fatalf("%q, %v", view, err)
	}
	m.Reads()
	b := m.Place(10, 0)
	m.Close()
	if string(view) != "answer" || m.Place(1, 0) != nil {
		t.Error("it is not there any more, or takes more")
	}
	m.Left()
	b.Data[0] = 1
	if b.Release(); m.regions != nil {
		t.Error("it is still mapped")
	}
	if _, err := m.View(2, 10, 6); err == nil {
		t.Error("it is read though it is closed")
	}
}

func TestWhatEndsOutsideOfARegionIsRefused(t *testing.T) {
	m, _ := opened(t)
	for _, each := range [][2]uint64{{regionBytes, 1}, {regionBytes + 1, 0}, {1, ^uint64(0)}, {0, regionBytes + 1}} {
		if _, err := m.View(0, each[0], each[1]); err == nil {
			t.Errorf("%v", each)
		}
	}
}
