// Package deadline reads the timeouts of callers.
package deadline

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	grpcTimeoutHeader = "Grpc-Timeout"
	maxTimeoutDigits  = 8
	// LongestTimeout stands for every longer one: a Duration could not hold 99999999H.
	LongestTimeout = 100 * 365 * 24 * time.Hour
)

var timeoutUnits = map[byte]time.Duration{
	'H': time.Hour,
	'M': time.Minute,
	'S': time.Second,
	'm': time.Millisecond,
	'u': time.Microsecond,
	'n': time.Nanosecond,
}

// Deadline is the time that a caller gives, and how it said so; no text: it gives any time.
type Deadline struct {
	Text  string
	After time.Duration
}

// With returns the time that a backend has, with the slack for its own answer to the deadline.
func (d Deadline) With(slack time.Duration) time.Duration {
	return min(d.After, math.MaxInt64-slack) + slack
}

// Of returns the deadline in a request's headers, of several the last, otherwise the standard one. ok is
// false if any of them cannot be read.
func Of(header http.Header, standard Deadline) (found Deadline, ok bool) {
	found = standard
	for _, text := range header[grpcTimeoutHeader] {
		text = strings.Trim(text, " \t")
		after, isTimeout := parseTimeout(text)
		if !isTimeout {
			return Deadline{}, false
		}
		found = Deadline{text, after}
	}
	return found, true
}

// parseTimeout reads at most 8 digits and a unit, as gRPC over HTTP/2 has it: 100m is 0.1 s.
func parseTimeout(text string) (time.Duration, bool) {
	digits := len(text) - 1
	if digits < 1 || digits > maxTimeoutDigits {
		return 0, false
	}
	unit, isUnit := timeoutUnits[text[digits]]
	number, err := strconv.ParseUint(text[:digits], 10, 32)
	if !isUnit || err != nil {
		return 0, false
	}
	if number > uint64(LongestTimeout/unit) {
		return LongestTimeout, true
	}
	return time.Duration(number) * unit, true
}

// Standard is that of --timeout.
func Standard(after time.Duration) Deadline {
	if after <= 0 {
		return Deadline{}
	}
	for _, unit := range []byte("numS") {
		number := (after + timeoutUnits[unit] - 1) / timeoutUnits[unit]
		if text := strconv.FormatInt(int64(number), 10); len(text) <= maxTimeoutDigits {
			return Deadline{text + string(unit), after}
		}
	}
	return Deadline{strconv.FormatInt(int64(after/time.Hour), 10) + "H", after}
}
