package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
)

// partsDouble is an HTTP port that answers part by part: the path says how.
type partsDouble struct {
	goOn    chan struct{} // a part for each
	gone    chan struct{} // a word for each caller who left
	written atomic.Int64  // bytes of endless answers
}

func (d *partsDouble) answer(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(text string) error {
		_, _ = io.WriteString(w, text)
		return control.Flush()
	}
	switch r.URL.Path {
	case "/svc/steps":
		for number := range 3 {
			_ = say(fmt.Sprintf("data: %d\n\n", number))
			<-d.goOn
		}
		_ = say("event: error\ndata: {}\n\n")
	case "/svc/broken":
		_ = say("data: 0\n\n")
		panic(http.ErrAbortHandler)
	case "/svc/endless":
		for part := "data: " + strings.Repeat("x", 10_000) + "\n\n"; say(part) == nil && r.Context().Err() == nil; {
			d.written.Add(int64(len(part)))
		}
		d.gone <- struct{}{}
	default:
		_ = say("event: end\ndata: {}\n\n")
	}
}

func TestPartsReachCallersOfHTTP2(t *testing.T) {
	double := &partsDouble{goOn: make(chan struct{}), gone: make(chan struct{}, 9)}
	g := startBoth(t, double.answer, nil, "--h2c")
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols}} // one connection
	ask := func(ctx context.Context, method string) *bufio.Reader {
		asked := newRequest(t, "POST", g.url+"/svc/"+method, gatewaytest.Pair, "Accept", "text/event-stream").WithContext(ctx)
		answer, err := client.Do(asked)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		if answer.ProtoMajor != 2 || answer.StatusCode != 200 {
			t.Fatalf("%s %s", answer.Proto, answer.Status)
		}
		return bufio.NewReader(answer.Body)
	}

	steps := ask(t.Context(), "steps")
	for number := range 3 { // each is there before the next is made
		line, _ := steps.ReadString('\n')
		empty, _ := steps.ReadString('\n')
		if line != fmt.Sprintf("data: %d\n", number) || empty != "\n" {
			t.Errorf("%q %q", line, empty)
		}
		double.goOn <- struct{}{}
	}
	if rest, err := io.ReadAll(steps); string(rest) != "event: error\ndata: {}\n\n" || err != nil {
		t.Errorf("%q %v", rest, err)
	}

	if rest, err := io.ReadAll(ask(t.Context(), "broken")); string(rest) != "data: 0\n\n" || err == nil {
		t.Errorf("one that was cut off ended as %q %v", rest, err)
	}

	ctx, leave := context.WithCancel(t.Context())
	slow := ask(ctx, "endless")
	_, _ = slow.ReadString('\n')
	before := int64(-1)
	gatewaytest.WaitUntil(t, "nothing more is made for who does not read", func() bool {
		for range 20 { // callers on the same connection
			if rest, err := io.ReadAll(ask(t.Context(), "other")); len(rest) == 0 || err != nil {
				t.Errorf("%q %v", rest, err)
			}
		}
		last := before
		before = double.written.Load()
		return before == last
	})
	leave()
	gatewaytest.Soon(t, "the end of the call behind", double.gone)
}
