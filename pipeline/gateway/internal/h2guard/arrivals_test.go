package h2guard

import (
	"context"
	"errors"
	"testing"
)

// began are arrivals of streams that have said all.
func began(streams ...uint32) *Arrivals {
	arrivals := &Arrivals{}
	for _, stream := range streams {
		arrivals.received(seen{kind: frameHeaders, stream: stream})
		arrivals.received(seen{kind: frameData, flags: flagEnd, stream: stream})
	}
	return arrivals
}

func TestACallIsWaitedForUntilItsSequenceIsKnown(t *testing.T) {
	arrivals := began(1, 3)
	changed := arrivals.isBehind(3, "a")
	if arrivals.isBehind(1, "b") != nil || changed == nil {
		t.Fatal("the first call waits, or the second one does not")
	}
	<-changed
	if err := arrivals.Wait(t.Context(), 3, "a"); err != nil {
		t.Fatal(err)
	}
}

func TestAStepIsWaitedForUntilItIsOver(t *testing.T) {
	for name, end := range map[string]func(*Arrivals){
		"passed on":           func(a *Arrivals) { a.Pass(1) },
		"reset":               func(a *Arrivals) { a.received(seen{kind: frameReset, stream: 1}) },
		"refused":             func(a *Arrivals) { a.sent(seen{kind: frameReset, stream: 1}) },
		"ended with trailers": func(a *Arrivals) { a.sent(seen{kind: frameHeaders, flags: flagEnd, stream: 1}) },
	} {
		arrivals := began(1, 3)
		if arrivals.isBehind(1, "a") != nil {
			t.Fatalf("%s: the first call waits", name)
		}
		changed := arrivals.isBehind(3, "a")
		end(arrivals)
		<-changed
		if arrivals.isBehind(3, "a") != nil {
			t.Errorf("%s: the second call waits", name)
		}
	}
}

func TestOnlyWholeCallsBeforeItAreWaitedFor(t *testing.T) {
	arrivals := &Arrivals{}
	arrivals.received(seen{kind: frameHeaders, stream: 1})
	arrivals.received(seen{kind: frameHeaders, flags: flagEnd, stream: 3})
	arrivals.received(seen{kind: frameHeaders, flags: flagEnd, stream: 5})
	if arrivals.isBehind(3, "a") != nil {
		t.Error("a step waits for a message that is not there")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := arrivals.Wait(over, 5, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	arrivals.sent(seen{kind: frameData, stream: 3}) // more follows
	if arrivals.isBehind(5, "a") == nil {
		t.Error("a step waits no more for one that has not ended")
	}
}
