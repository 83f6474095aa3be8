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

// ServerHandshake makes the handshake of a connection.
func (c guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return h2guard.New(conn, true, streamsAtOnce, c.told), info, nil
}

// Clone returns a copy.
func (c guardedCredentials) Clone() credentials.TransportCredentials {
	return guardedCredentials{c.TransportCredentials.Clone(), c.told}
}
