package frame

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// golden has what each frame is in hex; tests/unit/frontends/link/test_frames.py has the same table.
const golden = "../../../../../tests/support/golden/link_frames.json"

func opened(flags byte, method uint16, id uint64, what Opened, message string) []byte {
	data, _ := AppendOpen(nil, flags, method, id, &what, time.Now(), []byte(message))
	return data
}

func TestFramesAreTheGoldenOnes(t *testing.T) {
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	written := map[string][]byte{
		"open": opened(Message|Last, 7, 258, Opened{Caller: "c:1", Metadata: AppendField(nil, "a", "b")}, "data"),
		"open without time, a message of a stream follows": opened(0, 2, 1, Opened{Deadline: time.Unix(1, 0)}, ""),
		"data, more follows":    Append(nil, Data, Message|More, 2, []byte("piece")),
		"data, the last":        Append(nil, Data, Message|Last, 2, nil),
		"no message follows":    Append(nil, Data, Last, 2, nil),
		"headers":               Append(nil, Headers, 0, 3, AppendField(nil, "a", "b")),
		"answered":              AppendEnd(nil, math.MaxUint64, Ended{Status: 200}, []byte("data")),
		"answered with nothing": AppendEnd(nil, 4, Ended{Status: 200}, []byte{}),
		"ended":                 AppendEnd(nil, 5, Ended{Status: 200}, nil),
		"failed":                AppendEnd(nil, 6, Ended{8, 503, 3004, 7, "hä", Fields("a\nb\n")}, nil),
		"a negative err_no":     AppendEnd(nil, 7, Ended{Code: 2, Status: 500, ErrNo: -7}, nil),
		"reset":                 AppendReset(nil, 8, ReasonRefused, "why"),
		"credit of a call":      AppendCredit(nil, 9, 1<<20),
		"most credit":           AppendCredit(nil, 9, math.MaxUint32),
		"ping":                  Append(nil, Ping, 0, 10, nil),
		"pong":                  Append(nil, Pong, 0, 10, nil),
		"ready":                 AppendState(nil, true, 300),
		"goaway":                AppendGoaway(nil, 11, "it stops"),
	}
	for name, data := range written {
		if got := hex.EncodeToString(data); got != want[name] {
			t.Errorf("%s: %s, not %s", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not written: %v", want)
	}
}

func read(t *testing.T, data []byte) Frame {
	t.Helper()
	got, err := Read(bufio.NewReader(bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	metadata := AppendField(AppendField(nil, "a", "b"), "c-bin", "\x00\n")
	left, what, data, err := ReadOpen(read(t, opened(Message, 7, 258, Opened{Caller: "c", Metadata: metadata}, "data")).Body.Data)
	if err != nil || left != -1 || what.Caller != "c" || !bytes.Equal(what.Metadata, metadata) || string(data) != "data" {
		t.Errorf("%v %+v %q %v", left, what, data, err)
	}
	end := Ended{8, 503, -7, 7, "hä", Fields("a\nb\n")}
	got, data, err := ReadEnd(read(t, AppendEnd(nil, 1, end, []byte("data"))).Body.Data)
	if err != nil || got.Text != end.Text || got.ErrNo != -7 || got.Trailers.Get("a") != "b" || string(data) != "data" {
		t.Errorf("%+v %q %v", got, data, err)
	}
	if reason, text := ReadReset(read(t, AppendReset(nil, 1, ReasonOverrun, "why")).Body.Data); reason != ReasonOverrun || text != "why" {
		t.Errorf("%d %s", reason, text)
	}
	if last, text, err := ReadGoaway(read(t, AppendGoaway(nil, 9, "why")).Body.Data); last != 9 || text != "why" || err != nil {
		t.Errorf("%d %s %v", last, text, err)
	}
	said, err := ReadHello(read(t, AppendHello(nil, "hush")))
	if err != nil || said.Secret != "hush" || said.Limits.CallCredit != CallCredit {
		t.Errorf("%+v %v", said, err)
	}
}

func TestALongMessageIsCutInItsOpen(t *testing.T) {
	what := Opened{Caller: "c", Metadata: []byte("a\nb\n")}
	data, left := AppendOpen(nil, Message|Last, 7, 1, &what, time.Now(), make([]byte, MaxBytes))
	if got := read(t, data); len(got.Body.Data) != MaxBytes || got.Flags != Message|More || len(left) != OpenBytes+5 {
		t.Errorf("%d bytes, flags %d, %d left", len(got.Body.Data), got.Flags, len(left))
	}
}

func TestFramesAreTheSameHoweverTheyAreCut(t *testing.T) {
	var stream []byte
	for number := range 50 {
		stream = Append(stream, Data, More, uint64(number), make([]byte, 20*number*number))
	}
	for _, source := range []io.Reader{
		bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream)), iotest.HalfReader(bytes.NewReader(stream)),
	} {
		reader := bufio.NewReaderSize(source, HeadBytes)
		for number := range 50 {
			got, err := Read(reader)
			if err != nil || got.Kind != Data || !got.Has(More) || got.ID != uint64(number) || len(got.Body.Data) != 20*number*number {
				t.Fatalf("%d: %+v, %v", number, got, err)
			}
			got.Body.Release()
		}
		if _, err := Read(reader); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
}

func TestAFrameThatIsCutShortIsAnError(t *testing.T) {
	whole := Append(nil, Data, 0, 1, []byte("0123456789"))
	for size := 1; size < len(whole); size++ {
		if _, err := Read(bufio.NewReader(bytes.NewReader(whole[:size]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestFieldsAreReadAsTheyWereWritten(t *testing.T) {
	fields := AppendField(AppendField(AppendField(nil, "a", ""), "b-bin", "\xff\n"), "a", "c\nd")
	fields = append(fields, "e-bin\nno base64!\nf\ng"...)
	var got []string
	for name, value := range Fields(fields).All() {
		got = append(got, name, value)
	}
	if want := []string{"a", "", "b-bin", "\xff\n", "f", "g"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for range Fields(fields).All() {
		break
	}
	if Fields(fields).Get("f") != "g" || Fields(nil).Get("f") != "" {
		t.Error("another value")
	}
}

func TestABufferIsUsedAgainButForWhatIsGivenAway(t *testing.T) {
	first := NewBuffer(10)
	data := first.Detach()
	second := NewBuffer(10)
	second.Data[0] = 1
	if data[0] == 1 {
		t.Error("it is given away and used again")
	}
	second.Release()
	(*Buffer)(nil).Release()
	if whole := Joined([]*Buffer{{[]byte("a")}, {[]byte("bc")}}); string(whole) != "abc" {
		t.Errorf("%q", whole)
	}
	if strings.Contains(string(NewBuffer(0).Data), "a") {
		t.Error("an empty one has bytes")
	}
}
