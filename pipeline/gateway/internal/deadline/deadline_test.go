package deadline

import (
	"net/http"
	"testing"
	"time"
)

func TestTimeoutsAreReadAsTheDoorReadsThem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"100m": 100 * time.Millisecond, "1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second,
		"4u": 4 * time.Microsecond, "5n": 5, "0m": 0, "00000000H": 0, "99999999n": 99999999,
		"99999999H": LongestTimeout, "99999999M": LongestTimeout,
	} {
		if got, ok := parseTimeout(text); !ok || got != want {
			t.Errorf("%q: got %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "m", "5", "-1S", "+1S", "1.5S", "123456789S", "1s", "1 S", "1SS", "\xb2S", "1e3m", "1_0S"} {
		if got, ok := parseTimeout(text); ok {
			t.Errorf("%q was taken for %v", text, got)
		}
	}
}

func TestOfSeveralTimeoutsTheLastCountsAndEachMustBeReadable(t *testing.T) {
	standard := Deadline{"7S", 7 * time.Second}
	for _, test := range []struct {
		values []string
		want   Deadline
		ok     bool
	}{
		{nil, standard, true},
		{[]string{" 1S\t"}, Deadline{"1S", time.Second}, true},
		{[]string{"1S", "2S"}, Deadline{"2S", 2 * time.Second}, true},
		{[]string{"x", "2S"}, Deadline{}, false},
		{[]string{""}, Deadline{}, false},
	} {
		got, ok := Of(http.Header{grpcTimeoutHeader: test.values}, standard)
		if got != test.want || ok != test.ok {
			t.Errorf("%q: got %v, %v", test.values, got, ok)
		}
	}
}

func TestTheStandardDeadlineCanBeSaid(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0: "", 1: "1n", 30 * time.Second: "30000000u", 250 * time.Millisecond: "250000u",
		5 * time.Hour: "18000000m", 90 * time.Microsecond: "90000n", 12345 * time.Hour: "44442000S",
		LongestTimeout: "876000H",
	} {
		got := Standard(after)
		if got.Text != want {
			t.Errorf("%v: got %q, want %q", after, got.Text, want)
		}
		if said, ok := parseTimeout(got.Text); want != "" && (!ok || said < after) {
			t.Errorf("%v: %q means %v", after, got.Text, said)
		}
	}
}
