package procs

import (
	"context"
	"runtime"
	"testing"
	"time"
)

func TestProcessorsFollowTheWork(t *testing.T) {
	for _, test := range []struct {
		now, most int
		used      float64
		want      int
	}{
		{1, 4, 0, 1}, {1, 4, 0.75, 1}, {1, 4, 0.8, 2}, {1, 1, 1, 1},
		{2, 4, 1.6, 3}, {2, 4, 1.5, 2}, {2, 4, 0.5, 2}, {2, 4, 0.4, 1}, {4, 4, 4, 4}, {4, 4, 1.4, 3}, {4, 4, 1.6, 4},
	} {
		if got := wanted(test.now, test.most, test.used); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

func TestWhatTheEnvironmentSaysIsLeftAlone(t *testing.T) {
	t.Setenv("GOMAXPROCS", "7")
	before := runtime.GOMAXPROCS(0)
	Follow(t.Context())
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d", now)
	}
}

func TestThereAreMoreProcessorsWhileThereIsWork(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	ticks, used, set, ended := make(chan time.Time), make(chan time.Duration), make(chan int, 9), make(chan struct{})
	go func() {
		follow(ctx, 3, ticks, func() time.Duration { return <-used }, func(number int) { set <- number })
		close(ended)
	}()
	used <- 0
	at := time.Now().Add(time.Hour) // of which the first look makes little
	for _, total := range []time.Duration{0, time.Second, 3 * time.Second, 3 * time.Second, 3 * time.Second, 3 * time.Second} {
		ticks <- at
		used <- total
		at = at.Add(time.Second)
	}
	end()
	<-ended
	for _, want := range []int{1, 2, 3, 2, 1} {
		if got := <-set; got != want {
			t.Errorf("%d processors, not %d", got, want)
		}
	}
}
