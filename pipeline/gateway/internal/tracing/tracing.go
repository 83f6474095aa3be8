// Package tracing begins traces for requests without one (W3C's traceparent).
package tracing

import (
	"crypto/rand"
	"encoding/hex"

	"golang.org/x/time/rate"
)

// Beginner begins traces, of which so many a second are to be recorded. nil begins none.
type Beginner struct{ recorded *rate.Limiter }

// New returns one; nil for no traces.
func New(perS int) *Beginner {
	if perS == 0 {
		return nil
	}
	return &Beginner{rate.NewLimiter(rate.Limit(perS), perS)}
}

const (
	idBytes   = 16
	spanBytes = 8
)

// Begin returns the traceparent of a request whose caller says `given`: that, or a new one.
func (b *Beginner) Begin(given string) string {
	if b == nil || IsValid(given) {
		return given
	}
	var random [idBytes + spanBytes]byte
	_, _ = rand.Read(random[:]) // it cannot fail
	flags := "-00"
	if b.recorded.Allow() {
		flags = "-01"
	}
	text := hex.EncodeToString(random[:])
	return "00-" + text[:2*idBytes] + "-" + text[2*idBytes:] + flags
}

// IsValid says whether a text is a traceparent; later versions may have more behind it.
func IsValid(text string) bool {
	const length = 55
	if len(text) < length || len(text) > length && (text[:2] == "00" || text[length] != '-') || text[:2] == "ff" {
		return false
	}
	isZero := [4]bool{true, true, true, true}
	part := 0
	for at := range length {
		switch char := text[at]; {
		case at == 2 || at == 35 || at == 52:
			if char != '-' {
				return false
			}
			part++
		case char >= '0' && char <= '9', char >= 'a' && char <= 'f':
			isZero[part] = isZero[part] && char == '0'
		default:
			return false
		}
	}
	return !isZero[1] && !isZero[2]
}
