package grpcedge

import (
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"pipeline/gateway/internal/h2guard"
)

// guardedCredentials have gRPC read connections through a guard, behind their TLS.
type guardedCredentials struct {
	credentials.TransportCredentials
	told func(reason string)
}

func newGuardedCredentials(security *tls.Config, told func(reason string)) credentials.TransportCredentials {
	if security == nil {
		return guardedCredentials{insecure.NewCredentials(), told}
	}
	return guardedCredentials{credentials.NewTLS(security), told}
}

// connInfo is what is known of a connection: what its security says, and the order of its calls.
type connInfo struct {
	credentials.AuthInfo
	arrivals *h2guard.Arrivals
}

// ServerHandshake makes the handshake of a connection.
func (c guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	guarded := h2guard.New(conn, true, streamsAtOnce, c.told)
	return guarded, connInfo{info, guarded.Order()}, nil
}

// Clone returns a copy.
func (c guardedCredentials) Clone() credentials.TransportCredentials {
	return guardedCredentials{c.TransportCredentials.Clone(), c.told}
}
