package upstream

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/balance"
	"pipeline/gateway/internal/config"
)

// State is what is known of a backend.
type State int

const (
	StateDown      State = iota // there is no connection to it
	StateConnected              // it says that it does not serve now
	StateServing
)

const notConnectedYet = "not connected yet"

// Health is the state of a backend, and why it is not better.
type Health struct {
	State  State
	Reason string
}

// Backend is one pipeline server.
type Backend struct {
	Upstream
	Name    string
	Web     *http.Transport // to its HTTP port; nil: that is not known
	pending atomic.Int64    // requests that it was asked and that are not over
	retries atomic.Int64    // requests that came from another one

	failures      atomic.Int32 // requests in a row that failed
	isReached     atomic.Bool  // there is a connection, whatever it says of itself
	isOnTrial     atomic.Bool  // after an ejection
	isEjected     bool         // this, and the rest of it: the pool's, under its lock
	ejections     balance.Ejections
	ejectionCount int64
	readmission   *time.Timer

	health Health // the pool's: read and written under its lock

	stopWatching context.CancelFunc // nil: it is not watched yet
	gone         context.Context    // it is let go: what is still in flight there is broken off
	letGo        context.CancelFunc
}

// Connect prepares the connection to a backend.
type Connect func(address config.Backend, security *config.BackendTLS) (Upstream, error)

// newBackend prepares a backend. It does not connect before `Watch`.
func newBackend(address config.Backend, security *config.BackendTLS, connect Connect) (*Backend, error) {
	made, err := connect(address, security)
	if err != nil {
		return nil, err
	}
	each := &Backend{
		Upstream: made,
		Name:     address.Name,
		Web:      newWebTransport(address, security),
		health:   Health{StateDown, notConnectedYet},
	}
	each.gone, each.letGo = context.WithCancel(context.Background())
	return each, nil
}

// Pending returns how many requests it was asked that are not over.
func (b *Backend) Pending() int64 { return b.pending.Load() }

// Gone ends when the backend is let go.
func (b *Backend) Gone() context.Context { return b.gone }

// hangUp ends all connections to the backend.
func (b *Backend) hangUp() {
	b.letGo()
	b.isReached.Store(false)
	if b.stopWatching != nil {
		b.stopWatching()
	}
	b.Close()
	if b.Web != nil {
		b.Web.CloseIdleConnections()
	}
}
