package accesslog

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/logging"
)

var entry = Entry{
	Address: "192.0.2.1:5", Caller: "alice", Action: "POST /svc/p HTTP/1.1", Status: "200", Bytes: 95, Took: 4310 * time.Microsecond,
	Backend: "10.0.0.1:18070", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}

func TestALineOfText(t *testing.T) {
	var text bytes.Buffer
	log := New(logging.New(&text), 1, false)
	log.Write(&entry)
	log.Write(&Entry{Address: "192.0.2.1:5", Action: "GET /\n", Status: "404"})
	want := "INFO 192.0.2.1:5 \"POST /svc/p HTTP/1.1\" 200 95B 4.31ms 10.0.0.1:18070 alice 4bf92f3577b34da6a3ce929d0e0e4736\n" +
		"INFO 192.0.2.1:5 \"GET /\\n\" 404 0B 0.00ms - - -\n"
	if got := text.String(); got != want {
		t.Errorf("%q", got)
	}
}

func TestALineOfJSON(t *testing.T) {
	for _, hasParent := range []bool{true, false} {
		var text bytes.Buffer
		New(logging.NewJSON(&text, hasParent), 1, true).Write(&entry)
		line := strings.TrimSuffix(text.String(), "\n")
		if object, isLed := strings.CutPrefix(line, "INFO "); isLed == hasParent {
			line = object
		} else {
			t.Errorf("%q", line)
		}
		var found map[string]any
		if err := json.Unmarshal([]byte(line), &found); err != nil {
			t.Fatal(err, line)
		}
		for name, want := range map[string]any{
			"message": "request", "address": "192.0.2.1:5", "caller": "alice", "action": "POST /svc/p HTTP/1.1", "status": "200", "bytes": 95.0,
			"ms": 4.31, "backend": "10.0.0.1:18070", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
		} {
			if found[name] != want {
				t.Errorf("%s: %v", name, found[name])
			}
		}
		if (found["time"] != nil) == hasParent || (found["level"] != nil) == hasParent {
			t.Errorf("%v", found)
		}
	}
}

func TestEveryNth(t *testing.T) {
	log := New(nil, 3, false)
	count := 0
	for range 9 {
		if log.Wants() {
			count++
		}
	}
	if none := New(nil, 0, false); count != 3 || none.Wants() {
		t.Errorf("%d", count)
	}
}
