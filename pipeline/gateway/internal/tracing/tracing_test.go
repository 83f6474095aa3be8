package tracing

import (
	"strings"
	"testing"
)

const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestATraceIsBegunWhereThereIsNone(t *testing.T) {
	b := New(2)
	recorded := 0
	seen := map[string]bool{}
	for range 5 {
		made := b.Begin("")
		if !IsValid(made) || seen[made] {
			t.Errorf("%q", made)
		}
		seen[made] = true
		if strings.HasSuffix(made, "-01") {
			recorded++
		}
	}
	if recorded != 2 {
		t.Errorf("%d of 5 are recorded", recorded)
	}
	if got := b.Begin(given); got != given {
		t.Errorf("%q", got)
	}
	if got := New(0).Begin("nonsense"); got != "nonsense" {
		t.Errorf("%q", got)
	}
}

func TestWhatIsATraceparent(t *testing.T) {
	for text, want := range map[string]bool{
		given: true, "": false, given[1:]: false, given + "-x": false, "cc" + given[2:] + "-x": true, "cc" + given[2:] + "x": false,
		"ff" + given[2:]: false, strings.ToUpper(given): false, strings.Replace(given, "-", "_", 1): false,
		"00-" + strings.Repeat("0", 32) + given[35:]: false, given[:36] + strings.Repeat("0", 16) + "-01": false,
	} {
		if IsValid(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
