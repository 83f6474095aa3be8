package main

import (
	"context"
	"net"
	"time"
)

// A peer that is gone without a word, its machine or the network, is noticed by these.
const (
	probeAfter = 10 * time.Second
	probeEvery = 5 * time.Second
	probeCount = 3
)

// dialerTo returns a function that connects to one place, whatever address it is asked for.
func dialerTo(place endpoint) func(context.Context, string) (net.Conn, error) {
	dialer := &net.Dialer{
		Timeout:         connectTimeout,
		Control:         limitUnacknowledged,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probeCount},
	}
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, place.network, place.address)
	}
}
