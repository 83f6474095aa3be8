package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"pipeline/gateway/pipelinepb"
)

func TestABudgetIsNeverPassedAndAllOfItComesBack(t *testing.T) {
	b := newBudget(1000)
	var callers sync.WaitGroup
	for number := range 8 {
		callers.Go(func() {
			for turn := range 500 {
				held := share{of: b}
				for size := range int64(20) {
					_ = held.need(size * int64(turn%7))
					if now := b.held.Load(); now > 1000+8*20*7 { // others may be about to give theirs back
						t.Errorf("%d bytes", now)
					}
				}
				held.keep(int64(number))
				held.give(3)
				held.end()
				_ = held.need(5)
				held.give(5)
			}
		})
	}
	callers.Wait()
	if now := b.held.Load(); now != 0 {
		t.Errorf("%d bytes are left", now)
	}
}

func TestWhoFindsNoRoomIsToldWhetherToTryAgain(t *testing.T) {
	b := newBudget(1000)
	first, second := share{of: b}, share{of: b}
	if err := first.need(900); err != nil {
		t.Error(err)
	}
	isRefused(t, second.need(101), 503, codeOverloaded, "try again")
	isRefused(t, second.need(1001), 413, codePackage, "about 1001 bytes")
	first.end()
	if err := second.need(1000); err != nil {
		t.Error(err)
	}
}

func TestWhoComesWhenTheBudgetIsUsedUpIsRefusedAndNotTheProbes(t *testing.T) {
	backend := startWaiting(t)
	g := start(t, func(cfg *config) { cfg.maxBufferedBytes = 2*requestBytes + 5000 }, "--backend", backend.address)
	g.waitUntilServing(t, 1)
	done := make(chan reply)
	for range 2 {
		go func() { done <- g.post(t, pair) }()
		<-backend.entered
	}
	got := g.post(t, pair)
	got.isRefusal(t, 503, 3004, "--max-buffered-bytes")
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("%v", got.header)
	}
	if got := g.ask(t, "GET", "/health/ready", ""); got.status != 200 {
		t.Errorf("ready: %d", got.status)
	}
	wantIn(t, g.ask(t, "GET", "/metrics", "").body, fmt.Sprintf("pipeline_gateway_buffered_bytes %v", float64(g.budget.held.Load())))
	close(backend.release)
	<-done
	<-done
	waitUntil(t, "nothing is held", func() bool { return g.budget.held.Load() == 0 })
	if got := g.post(t, pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestTensorsThatAreSmallAsTextWeighWhatTheyTake(t *testing.T) {
	for text, least := range map[string]int64{
		`{"tensors":[` + strings.Repeat(`{},`, 999) + `{}]}`:                         1000 * tensorBytes,
		`{"tensors":[{"float64_data":[` + strings.Repeat("0,", 9999) + `0]}]}`:       80_000,
		`{"key":["` + strings.Repeat(`{,\"`, 1000) + `"]}`:                           4000,
		`{"key":[` + strings.Repeat(`"",`, 999) + `""]}`:                             16_000,
		`{"tensors":[{"str_data":[` + strings.Repeat(`"\\",`, 999) + `""]}],"a":[]}`: 16_000,
	} {
		weight := weightOf([]byte(text))
		if weight < least || weight > 2*least+int64(len(text))+4*tensorBytes {
			t.Errorf("%.40s: %d, of %d", text, weight, least)
		}
	}
	backend := startDouble(t, echo, doubleOptions{})
	g := start(t, func(cfg *config) { cfg.maxBufferedBytes = 1 << 20 }, "--backend", backend.address)
	g.waitUntilServing(t, 1)
	g.post(t, `{"tensors":[{}`+strings.Repeat(",{}", 5000)+`]}`).isRefusal(t, 413, 8000, "bytes of memory")
	if calls := backend.calls.Load(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

func TestAnAnswerThatThereIsNoRoomForIsRefused(t *testing.T) {
	large := func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) {
		return responseOf(strings.Repeat("x", 1<<20)), nil
	}
	g := start(t, func(cfg *config) { cfg.maxBufferedBytes = 1 << 20 }, "--backend", startDouble(t, large, doubleOptions{}).address)
	g.waitUntilServing(t, 1)
	g.post(t, pair).isRefusal(t, 500, 8000, "the answer takes about")
	waitUntil(t, "nothing is held", func() bool { return g.budget.held.Load() == 0 })
}

func TestABombTakesNoMemory(t *testing.T) {
	for _, encoding := range []string{"gzip", "deflate"} {
		bomb := []byte(packed(t, encoding, strings.Repeat(" ", 16<<20)))
		x := &exchange{}
		x.share.of = newBudget(1 << 30)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := x.unpack(encoding, bomb, sizeLimit{"max_json_bytes", 1 << 20})
		runtime.ReadMemStats(&after)
		isRefused(t, err, 413, codePackage, "max_json_bytes (1048576 bytes)")
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 8<<20 {
			t.Errorf("%s: %d bytes", encoding, taken)
		}
	}
	x := &exchange{}
	x.share.of = newBudget(1 << 20)
	_, err := x.unpack("gzip", []byte(packed(t, "gzip", strings.Repeat(" ", 16<<20))), sizeLimit{"max_json_bytes", 1 << 30})
	var refused *refusal
	if !errors.As(err, &refused) || (refused.status != 413 && refused.status != 503) || x.share.size > 1<<20 {
		t.Errorf("%v, %d bytes", err, x.share.size)
	}
}

func TestJSONHasALimitOfItsOwn(t *testing.T) {
	g, _ := startEcho(t, nil, "--max-json-bytes", "1000")
	text := "the request is larger than max_json_bytes (1000 bytes)"
	long := `{"x":"` + strings.Repeat("x", 1000) + `"}`
	g.post(t, long).isRefusal(t, 413, 8000, text)
	g.post(t, packed(t, "gzip", long), "Content-Encoding", "gzip").isRefusal(t, 413, 8000, text)
	both := startBoth(t, told, nil, "--max-json-bytes", "1000")
	if got := both.ask(t, "POST", "/v2", long); got.body != long {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestTheBudgetFitsTheMachine(t *testing.T) {
	for _, test := range []struct{ json, allowed, want int64 }{
		{16 << 20, math.MaxInt64, defaultBufferedBytes},
		{256 << 20, math.MaxInt64, 12 * 256 << 20},
		{16 << 20, 256 << 20, 128 << 20},
		{16 << 20, 1, leastBufferedBytes},
	} {
		if got := budgetFor(test.json, test.allowed); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
	if got := memoryFor(1<<20, math.MaxInt64); got != 2<<20+ownBytes {
		t.Errorf("%d", got)
	}
	if got := memoryFor(1<<30, 1000); got != 900 {
		t.Errorf("%d", got)
	}
	if limit := memoryLimit(); limit <= 0 {
		t.Errorf("the control group allows %d bytes", limit)
	}
}

func TestMemoryThatNobodyHoldsIsGivenBack(t *testing.T) {
	for _, test := range []struct {
		taken, held int64
		want        bool
	}{{50 << 20, 0, false}, {65 << 20, 0, true}, {200 << 20, 100 << 20, false}, {300 << 20, 100 << 20, true}} {
		if got := isWorthSweeping(test.taken, test.held); got != test.want {
			t.Errorf("%+v", test)
		}
	}
}

func TestABodyThatEndsNowhereTakesNoMemoryAhead(t *testing.T) {
	x := &exchange{}
	x.share.of = newBudget(1 << 30)
	x.cfg = &config{maxMessageBytes: 1 << 40, maxJSONBytes: 1 << 40}
	x.request = &http.Request{ContentLength: 1 << 40, Body: io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))}
	if _, err := x.readBody(x.cfg.messageLimit()); err != errCallerLeft || x.share.size > 2*trustedBytes {
		t.Errorf("%v, %d bytes", err, x.share.size)
	}
	if _, err := x.readAll(io.MultiReader(bytes.NewReader(make([]byte, 100)), strings.NewReader("x")), 1, 1, sizeLimit{"k", 100}); err == nil {
		t.Error("the limit was passed")
	}
}
