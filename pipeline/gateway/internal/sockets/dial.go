// Package sockets dials, and reads and sets the system's options of sockets.
package sockets

import (
	"context"
	"net"
	"time"
)

// Endpoint is where to dial: a network of package net, and an address there.
type Endpoint struct {
	Network string // "tcp" or "unix"
	Address string
}

// Of a connection that is made, and made again after a failure.
const (
	FirstBackoff   = 50 * time.Millisecond
	LastBackoff    = 2 * time.Second
	ConnectTimeout = 3 * time.Second
)

// These detect a peer that vanishes without a message, its machine or the network.
const (
	probeAfter = 10 * time.Second
	probeEvery = 5 * time.Second
	probeCount = 3
)

// DialerTo returns a function that connects to one place, whatever address it is asked for.
func DialerTo(place Endpoint) func(context.Context, string) (net.Conn, error) {
	dialer := &net.Dialer{
		Timeout:         ConnectTimeout,
		Control:         limitUnacknowledged,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probeCount},
	}
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, place.Network, place.Address)
	}
}
