package upstream

import (
	"net/http"

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
	Name   string
	Web    *http.Transport // to its HTTP port; nil: that is not known
	health Health          // the pool's: read and written under its lock
}

// Connect prepares the connection to a backend.
type Connect func(address config.Backend, security *config.BackendTLS) (Upstream, error)

// newBackend prepares a backend. It does not connect before `Watch`.
func newBackend(address config.Backend, security *config.BackendTLS, connect Connect) (*Backend, error) {
	made, err := connect(address, security)
	if err != nil {
		return nil, err
	}
	return &Backend{
		Upstream: made,
		Name:     address.Name,
		Web:      newWebTransport(address, security),
		health:   Health{StateDown, notConnectedYet},
	}, nil
}

// hangUp ends all connections to the backend.
func (b *Backend) hangUp() {
	b.Close()
	if b.Web != nil {
		b.Web.CloseIdleConnections()
	}
}
