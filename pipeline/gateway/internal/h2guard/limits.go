package h2guard

import "time"

// What one connection may send: so many at once, and so many a second. Frames that answer ours, as a
// WINDOW_UPDATE
// does, are allowed for by what we send. They are far above what clients do, and far below what is felt.
const (
	resetsAtOnce, resetsPerS     = 1, 200 // at once: so many times the streams of a connection: all may be given up
	controlsAtOnce, controlsPerS = 1000, 100
	updatesAtOnce, updatesPerS   = 1000, 100
	updatesPerData               = 4 // of each of our DATA frames: one for the stream, one for the connection, and again
	continuationsPerBlock        = 16
)

// Reasons to hang up, labels of the metrics.
const (
	reasonResets        = "resets"
	reasonControls      = "control_frames"
	reasonUpdates       = "window_updates"
	reasonContinuations = "continuations"
)

// Codes of resets (RFC 9113, 7).
const (
	codeNone         = 0x0
	codeCancel       = 0x8
	codeEnhanceCalm  = 0xb
	goAwayFrame      = 0x7
	everyStreamSoFar = 1<<31 - 1
)

// bucket holds what is allowed now.
type bucket struct {
	left, most float64
	perS       float64
	at         time.Time
}

func newBucket(most, perS float64, now time.Time) bucket { return bucket{most, most, perS, now} }

// take takes one; false: there is none. It asks for the time only when it has run out.
func (b *bucket) take(now func() time.Time) bool {
	if b.left < 1 {
		at := now()
		b.left = min(b.most, b.left+b.perS*at.Sub(b.at).Seconds())
		b.at = at
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (b *bucket) add(some float64) { b.left = min(b.most, b.left+some) }

// allowance is what one connection may still do.
type allowance struct {
	now           func() time.Time
	resets        bucket
	controls      bucket
	updates       bucket
	continuations int // of the header block that continues
}

func newAllowance(streams int, now func() time.Time) allowance {
	at := now()
	return allowance{
		now:      now,
		resets:   newBucket(float64(resetsAtOnce*streams), resetsPerS, at),
		controls: newBucket(controlsAtOnce, controlsPerS, at),
		updates:  newBucket(updatesAtOnce, updatesPerS, at),
	}
}

// received returns the reason to hang up after a frame of the caller's, "" for none.
func (a *allowance) received(frame seen) string {
	switch frame.kind {
	case frameData:
		if frame.size > 0 || frame.flags&flagEnd != 0 {
			return ""
		}
	case frameHeaders:
		a.continuations = 0
		return ""
	case frameContinuation:
		if a.continuations++; a.continuations > continuationsPerBlock {
			return reasonContinuations
		}
		return ""
	case frameReset:
		return taken(&a.resets, a.now, reasonResets)
	case frameWindowUpdate:
		return taken(&a.updates, a.now, reasonUpdates)
	}
	return taken(&a.controls, a.now, reasonControls)
}

// sent counts what we send: what a caller may answer, and resets that it has provoked. It returns the reason
// to
// hang up, "" for none.
func (a *allowance) sent(frame seen) string {
	switch {
	case frame.kind == frameData && frame.size > 0:
		a.updates.add(updatesPerData)
		a.controls.add(1) // clients measure the way by a PING
	case frame.kind == frameReset && frame.code != codeNone && frame.code != codeCancel:
		return taken(&a.resets, a.now, reasonResets)
	}
	return ""
}

func taken(from *bucket, now func() time.Time, reason string) string {
	if from.take(now) {
		return ""
	}
	return reason
}
