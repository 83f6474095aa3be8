package edge

import (
	"net/http"
	"testing"
)

func TestWhoNamesAStreamMayWantParts(t *testing.T) {
	for accepted, want := range map[string]bool{
		"":                                      false,
		"*/*":                                   false,
		"text/*":                                false,
		"application/json":                      false,
		"text/event-stream":                     true,
		"Text/Event-Stream; q=0.1, */*":         true, // the door weighs it
		"application/json,application/x-ndjson": true,
	} {
		if got := mayWantParts(http.Header{"Accept": {"image/png", accepted}}); got != want {
			t.Errorf("%q: %v", accepted, got)
		}
	}
	if mayWantParts(http.Header{}) {
		t.Error("without Accept")
	}
}
