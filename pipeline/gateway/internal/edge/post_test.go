package edge

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/sequence"
)

// posting is a POST whose body is read from there.
func posting(body io.Reader, mostBytes int64) *exchange {
	x := &exchange{cfg: &config.Config{}, request: &http.Request{Body: io.NopCloser(body)}}
	x.share.Of = memory.NewBudget(mostBytes)
	return x
}

func TestALargeBodyIsReceivedInItsPlaceHoweverItComes(t *testing.T) {
	sent := bytes.Repeat([]byte("abc"), 100_000)
	for _, source := range []io.Reader{bytes.NewReader(sent), iotest.HalfReader(bytes.NewReader(sent)), iotest.DataErrReader(bytes.NewReader(sent))} {
		x, room := posting(source, 1<<20), make([]byte, len(sent))
		if err := x.receive(room); err != nil || !bytes.Equal(room, sent) {
			t.Errorf("%v, %d bytes", err, len(room))
		}
		if x.share.Size != int64(len(sent)) {
			t.Errorf("%d bytes are counted", x.share.Size)
		}
	}
}

func TestABodyThatStopsIsCountedAsFarAsItCame(t *testing.T) {
	x := posting(io.MultiReader(strings.NewReader("some"), iotest.ErrReader(io.ErrUnexpectedEOF)), 1<<30)
	if err := x.receive(make([]byte, 1<<24)); err != errCallerLeft || x.share.Size > receiveStep {
		t.Errorf("%v, %d bytes", err, x.share.Size)
	}
}

func TestABodyForWhichThereIsNoRoomIsRefusedWhereTheRoomEnds(t *testing.T) {
	x := posting(bytes.NewReader(make([]byte, 1<<20)), 4*receiveStep)
	gatewaytest.IsRefused(t, x.receive(make([]byte, 1<<20)), http.StatusServiceUnavailable, failure.CodeOverloaded, "")
	if x.share.Size > 4*receiveStep {
		t.Errorf("%d bytes", x.share.Size)
	}
}

func TestTheFirstTensorOfAPOSTStandsBehindItsJSON(t *testing.T) {
	for told, want := range map[string]int{"": 0, "10": 10, "99": 99, "100": 0, "-1": 0, "x": 0, "99999999999999999999": 0} {
		r := &http.Request{ContentLength: 100, Header: http.Header{jsonLength: {told}}}
		if got := leadOfPOST(r); got != want {
			t.Errorf("%q: %d", told, got)
		}
	}
}

func TestTheSequenceOfAPOSTIsReadInItsJSONAlone(t *testing.T) {
	text := `{"parameters":{"sequence_id":7,"sequence_start":true}}`
	r, err := http.NewRequest(http.MethodPost, "/v2/models/m/infer", nil)
	if err != nil {
		t.Fatal(err)
	}
	for told, want := range map[string]string{"": "", "54": "7", "3": "", "99999": ""} {
		if r.Header = (http.Header{}); told != "" {
			r.Header.Set(jsonLength, told)
		}
		found := stepOfBody(r, []byte(text+"\x00tensors"))
		if (found == nil) != (want == "") || found != nil && !strings.Contains(found.ID, want) {
			t.Errorf("%q: %+v", told, found)
		}
	}
	r.Header.Set(sequence.Header, "8")
	if found := stepOfBody(r, nil); found == nil || !strings.HasSuffix(found.ID, "8") {
		t.Errorf("%+v", found)
	}
}
