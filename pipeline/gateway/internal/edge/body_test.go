package edge

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/memory"
)

func TestWhatIsReadEndsHoweverLittleIsExpected(t *testing.T) {
	for range 100 { // with buffers of any kind
		for _, text := range []string{"", "x", "xyz"} {
			x := &exchange{}
			x.share.Of = memory.NewBudget(1 << 20)
			got, err := x.readAll(strings.NewReader(text), 0, 0, config.SizeLimit{Key: "k", Bytes: 100})
			if err != nil || string(got) != text {
				t.Fatalf("%q: %q, %v", text, got, err)
			}
		}
	}
}

func TestABombTakesNoMemory(t *testing.T) {
	for _, encoding := range []string{"gzip", "deflate"} {
		bomb := []byte(gatewaytest.Packed(t, encoding, strings.Repeat(" ", 16<<20)))
		x := &exchange{}
		x.share.Of = memory.NewBudget(1 << 30)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := x.unpack(encoding, bomb, config.SizeLimit{Key: "max_json_bytes", Bytes: 1 << 20})
		runtime.ReadMemStats(&after)
		gatewaytest.IsRefused(t, err, 413, failure.CodePackage, "max_json_bytes (1048576 bytes)")
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 8<<20 {
			t.Errorf("%s: %d bytes", encoding, taken)
		}
	}
	x := &exchange{}
	x.share.Of = memory.NewBudget(1 << 20)
	_, err := x.unpack("gzip", []byte(gatewaytest.Packed(t, "gzip", strings.Repeat(" ", 16<<20))), config.SizeLimit{Key: "max_json_bytes", Bytes: 1 << 30})
	var refused *failure.Error
	if !errors.As(err, &refused) || (refused.Status != 413 && refused.Status != 503) || x.share.Size > 1<<20 {
		t.Errorf("%v, %d bytes", err, x.share.Size)
	}
}

func TestABodyThatEndsNowhereTakesNoMemoryAhead(t *testing.T) {
	x := &exchange{}
	x.share.Of = memory.NewBudget(1 << 30)
	x.cfg = &config.Config{MaxMessageBytes: 1 << 40, MaxJSONBytes: 1 << 40}
	x.request = &http.Request{ContentLength: 1 << 40, Body: io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))}
	if _, err := x.readBody(x.cfg.MessageLimit()); err != errCallerLeft || x.share.Size > 2*trustedBytes {
		t.Errorf("%v, %d bytes", err, x.share.Size)
	}
	if _, err := x.readAll(io.MultiReader(bytes.NewReader(make([]byte, 100)), strings.NewReader("x")), 1, 1, config.SizeLimit{Key: "k", Bytes: 100}); err == nil {
		t.Error("the limit was passed")
	}
}

func TestGzipWithFlagsThatNobodyKnowsIsRefused(t *testing.T) {
	packed := []byte(gatewaytest.Packed(t, "gzip", "{}"))
	packed[flagsAt] |= 0x80
	x := &exchange{}
	x.share.Of = memory.NewBudget(1 << 20)
	var handed *fallback
	if _, err := x.unpack("gzip", packed, config.SizeLimit{Key: "k", Bytes: 100}); !errors.As(err, &handed) {
		t.Errorf("%v", err)
	}
}
