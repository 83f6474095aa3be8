package main

import (
	"context"
	"net/http"
	"time"

	"pipeline/gateway/pipelinepb"
)

// state is what is known of a backend.
type state int

const (
	stateDown      state = iota // there is no connection to it
	stateConnected              // it says that it does not serve now
	stateServing
)

const notConnectedYet = "not connected yet"

// health is the state of a backend, and why it is not better.
type health struct {
	state  state
	reason string
}

// asker is a connection to a pipeline server, for inference.
type asker interface {
	// ask returns the server's answer. Its error is a *refusal, errNeverLeft, or one of package
	// context: that of ctx, or that the server saw the end of the time first.
	ask(ctx context.Context, request *pipelinepb.Request, header http.Header, limit deadline) (*pipelinepb.Response, error)
	// watch keeps the connection and reports the health of the server whenever it changes, until
	// ctx ends.
	watch(ctx context.Context, report func(health))
	close()
}

// backend is one pipeline server.
type backend struct {
	asker
	name   string
	web    *http.Transport // to its HTTP port; nil: that is not known
	health health          // the pool's: read and written under its lock
}

// newBackend prepares a backend. It does not connect before `watch`.
func newBackend(address backendAddress, security *backendTLS, stall time.Duration) (*backend, error) {
	asker, err := newAsker(address, security, stall)
	if err != nil {
		return nil, err
	}
	return &backend{
		asker:  asker,
		name:   address.name,
		web:    newWebTransport(address, security),
		health: health{stateDown, notConnectedYet},
	}, nil
}

func newAsker(address backendAddress, security *backendTLS, stall time.Duration) (asker, error) {
	if address.isLink {
		return newLink(address.rpc, beatsFor(stall)), nil
	}
	return newRPC(address, security)
}

// hangUp ends all connections to the backend.
func (b *backend) hangUp() {
	b.close()
	if b.web != nil {
		b.web.CloseIdleConnections()
	}
}
