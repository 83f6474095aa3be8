package upstream

import (
	"context"
	"net"
	"net/http"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/sockets"
)

const (
	idleConns       = 64               // to each backend
	idleConnTimeout = 60 * time.Second // less than the 75 s of the doors, so that we are the first
	continueTimeout = time.Second
	webBufferBytes  = 32 << 10
)

// newWebTransport returns the connections to the HTTP port of a backend, nil if it has none.
func newWebTransport(address config.Backend, security *config.BackendTLS) *http.Transport {
	if address.HTTP == nil {
		return nil
	}
	dial := sockets.DialerTo(*address.HTTP)
	if address.IsLink {
		dial = sockets.PrivateTo(*address.HTTP)
	}
	transport := &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "") },
		DisableCompression:    true, // what the caller accepts is its own affair
		MaxIdleConnsPerHost:   idleConns,
		IdleConnTimeout:       idleConnTimeout,
		ExpectContinueTimeout: continueTimeout,
		TLSHandshakeTimeout:   sockets.ConnectTimeout,
		ReadBufferSize:        webBufferBytes,
		WriteBufferSize:       webBufferBytes,
	}
	if security != nil {
		transport.TLSClientConfig = security.ForHost(address.Host)
	}
	return transport
}
