package h2guard

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

const (
	testStreams = 512
	mostResets  = resetsAtOnce * testStreams
)

// written returns the bytes of frames, behind a preface.
func written(t *testing.T, write func(*http2.Framer) error) []byte {
	t.Helper()
	var text bytes.Buffer
	text.WriteString(preface)
	if err := write(http2.NewFramer(&text, nil)); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// times writes a frame so often.
func times(count int, write func(*http2.Framer) error) func(*http2.Framer) error {
	return func(framer *http2.Framer) error {
		for range count {
			if err := write(framer); err != nil {
				return err
			}
		}
		return nil
	}
}

func ping(framer *http2.Framer) error  { return framer.WritePing(false, [8]byte{}) }
func reset(framer *http2.Framer) error { return framer.WriteRSTStream(1, http2.ErrCodeCancel) }

func TestFramesAreFoundInAnyPieces(t *testing.T) {
	data := written(t, func(framer *http2.Framer) error {
		return errors.Join(
			framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7}), framer.WriteData(1, true, make([]byte, 300)),
			framer.WriteData(1, false, nil), framer.WriteRSTStream(3, http2.ErrCodeRefusedStream), framer.WriteWindowUpdate(0, 5),
		)
	})[len(preface):]
	wanted := []seen{{4, 0, 6, 0}, {frameData, flagEnd, 300, 0}, {frameData, 0, 0, 0}, {frameReset, 0, 4, 7}, {frameWindowUpdate, 0, 4, 0}}
	for range 200 {
		var found []seen
		var scan scanner
		for rest := data; len(rest) > 0; {
			n := 1 + rand.IntN(len(rest))
			scan.feed(rest[:n], func(frame seen) bool {
				found = append(found, frame)
				return true
			})
			rest = rest[n:]
		}
		if !slices.Equal(found, wanted) || !scan.isBetween() {
			t.Fatalf("%v", found)
		}
	}
}

// frozen is an allowance whose time stands still.
func frozen() *allowance {
	at := time.Now()
	allowed := newAllowance(testStreams, func() time.Time { return at })
	return &allowed
}

func TestWhatIsTooMuchHasItsReason(t *testing.T) {
	for _, each := range []struct {
		frame  seen
		most   int
		reason string
	}{
		{seen{kind: frameReset}, mostResets, reasonResets},
		{seen{kind: 6}, controlsAtOnce, reasonControls}, // PING
		{seen{kind: 4}, controlsAtOnce, reasonControls}, // SETTINGS
		{seen{kind: 2}, controlsAtOnce, reasonControls}, // PRIORITY
		{seen{kind: 0xee}, controlsAtOnce, reasonControls},
		{seen{kind: frameData}, controlsAtOnce, reasonControls}, // empty
		{seen{kind: frameWindowUpdate}, updatesAtOnce, reasonUpdates},
		{seen{kind: frameContinuation}, continuationsPerBlock, reasonContinuations},
	} {
		allowed := frozen()
		for number := range each.most {
			if reason := allowed.received(each.frame); reason != "" {
				t.Fatalf("%+v: %s after %d", each.frame, reason, number)
			}
		}
		if reason := allowed.received(each.frame); reason != each.reason {
			t.Errorf("%+v: %q", each.frame, reason)
		}
	}
}

func TestWhatIsOrdinaryHasNoLimit(t *testing.T) {
	allowed := frozen()
	for _, frame := range []seen{{kind: frameHeaders}, {kind: frameData, size: 1}, {kind: frameData, flags: flagEnd}} {
		for range 10_000 {
			if reason := allowed.received(frame); reason != "" {
				t.Fatalf("%+v: %s", frame, reason)
			}
		}
	}
}

func TestEachHeaderBlockHasItsContinuations(t *testing.T) {
	allowed := frozen()
	for range 100 {
		allowed.received(seen{kind: frameHeaders})
		for range continuationsPerBlock {
			if reason := allowed.received(seen{kind: frameContinuation}); reason != "" {
				t.Fatal(reason)
			}
		}
	}
}

func TestTimeAllowsForMore(t *testing.T) {
	at := time.Now()
	allowed := newAllowance(testStreams, func() time.Time { return at })
	take := func() (count int) {
		for allowed.received(seen{kind: frameReset}) == "" {
			count++
		}
		return count
	}
	if first := take(); first != mostResets {
		t.Errorf("%d", first)
	}
	at = at.Add(time.Second)
	if second := take(); second != resetsPerS {
		t.Errorf("%d", second)
	}
	at = at.Add(time.Hour)
	if third := take(); third != mostResets {
		t.Errorf("%d", third)
	}
}

func TestWhatWeSendAllowsForAnswersOrCounts(t *testing.T) {
	allowed := frozen()
	for range 10_000 { // a caller that gives back its window twice for each piece, and measures the way
		allowed.sent(seen{kind: frameData, size: 1})
		for _, kind := range []byte{frameWindowUpdate, frameWindowUpdate, 6} {
			if reason := allowed.received(seen{kind: kind}); reason != "" {
				t.Fatal(reason)
			}
		}
	}
	for _, code := range []uint32{codeNone, codeCancel} { // an early answer, a deadline
		for range 10_000 {
			if reason := allowed.sent(seen{kind: frameReset, code: code}); reason != "" {
				t.Fatal(reason)
			}
		}
	}
	for range mostResets {
		allowed.sent(seen{kind: frameReset, code: 1})
	}
	if reason := allowed.sent(seen{kind: frameReset, code: 1}); reason != reasonResets {
		t.Errorf("resets that a caller provokes: %q", reason)
	}
}

// played is a guarded connection, and its caller.
func played(t *testing.T, isHTTP2 bool) (guarded *Conn, caller net.Conn, told chan string) {
	t.Helper()
	inner, caller := net.Pipe()
	told = make(chan string, 1)
	t.Cleanup(func() { _, _ = inner.Close(), caller.Close() })
	return New(inner, isHTTP2, testStreams, func(reason string) { told <- reason }), caller, told
}

func TestACallerIsToldWhyItIsHungUpOn(t *testing.T) {
	guarded, caller, told := played(t, false)
	go func() {
		_, _ = caller.Write(written(t, times(mostResets+1, reset)))
		_, _ = caller.Write([]byte("and more, which nobody reads"))
	}()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, guarded)
		_, again := guarded.Read(make([]byte, 1))
		ended <- errors.Join(err, map[bool]error{false: again}[again == io.EOF])
	}()
	frame, err := http2.NewFramer(nil, caller).ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	goodbye, isGoodbye := frame.(*http2.GoAwayFrame)
	if !isGoodbye || goodbye.ErrCode != http2.ErrCodeEnhanceYourCalm || string(goodbye.DebugData()) != "too many resets" {
		t.Errorf("%v", frame)
	}
	_ = caller.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if reason := <-told; reason != reasonResets {
		t.Errorf("%q", reason)
	}
}

func TestNothingIsSaidInTheMiddleOfAFrame(t *testing.T) {
	guarded, caller, told := played(t, true)
	half := written(t, func(framer *http2.Framer) error { return framer.WriteData(1, true, make([]byte, 100)) })[len(preface):]
	go func() { _, _ = guarded.Write(half[:50]) }()
	if _, err := io.ReadFull(caller, make([]byte, 50)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = caller.Write(written(t, times(controlsAtOnce+1, ping))) }()
	if _, err := io.Copy(io.Discard, guarded); err != nil {
		t.Fatal(err)
	}
	if reason := <-told; reason != reasonControls {
		t.Errorf("%q", reason)
	}
	_ = guarded.Close()
	if left, _ := io.ReadAll(caller); len(left) > 0 {
		t.Errorf("%q", left)
	}
}

func TestOtherProtocolsPass(t *testing.T) {
	guarded, caller, told := played(t, false)
	text := append([]byte("PRI * HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte{0, 0, 0, 6, 0, 0, 0, 0, 0}, 5000)...)
	go func() {
		_, _ = caller.Write(text)
		_ = caller.Close()
	}()
	if found, err := io.ReadAll(guarded); err != nil || !bytes.Equal(found, text) || len(told) > 0 {
		t.Errorf("%d bytes %v", len(found), err)
	}
}

func TestWhatIsToBeHTTP2AndIsNotEnds(t *testing.T) {
	guarded, caller, _ := played(t, true)
	go func() { _, _ = io.WriteString(caller, "GET / HTTP/1.1\r\n\r\n") }()
	if found, err := io.ReadAll(guarded); err != nil || len(found) > 0 {
		t.Errorf("%q %v", found, err)
	}
}
