package upstream

import (
	"context"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/sockets"
)

const (
	streamWindow = 1 << 20 // bytes in flight of one message
	connWindow   = 8 << 20 // of all messages on a connection
)

// grpcConn asks a server over gRPC, on one HTTP/2 connection.
type grpcConn struct {
	conn   *grpc.ClientConn
	checks *config.Balancing // says how its health is checked
}

// NewGRPC prepares the connection to a server. It does not connect before Watch.
func NewGRPC(address config.Backend, security *config.BackendTLS, checks *config.Balancing) (*grpcConn, error) {
	options := append(dialOptions(address.RPC), securityOptions(address, security)...)
	conn, err := grpc.NewClient("passthrough:///"+address.RPC.Address, options...)
	if err != nil {
		return nil, fmt.Errorf("--backend %s: %w", address.Name, err)
	}
	return &grpcConn{conn, checks}, nil
}

// Unary calls the server. A call for which there was no connection has no peer. The end of the time
// may be seen here first or there: it is context.DeadlineExceeded.
func (c *grpcConn) Unary(ctx context.Context, call *Call) (Reply, error) {
	var seenBy peer.Peer
	var trailer metadata.MD
	var answer []byte
	err := c.conn.Invoke(call.outgoing(ctx), call.Method, call.Data, &answer, grpc.ForceCodecV2(rawCodec{}), grpc.Peer(&seenBy), grpc.Trailer(&trailer))
	if err == nil {
		return Reply{Data: answer, Head: headOfTrailer(trailer)}, nil
	}
	switch {
	case ctx.Err() != nil:
		return Reply{}, ctx.Err()
	case seenBy.Addr == nil && hasNotLeft(err):
		return Reply{}, ErrNeverLeft
	case status.Code(err) == codes.DeadlineExceeded && len(trailer.Get(ErrNoKey)) == 0:
		return Reply{}, context.DeadlineExceeded // the backend's gRPC also has a clock
	}
	return Reply{}, failureOf(err, trailer)
}

// rawCodec passes messages unchanged: the caller has encoded them.
type rawCodec struct{}

// Name is that of protobuf, in which they are encoded.
func (rawCodec) Name() string { return "proto" }

// Marshal takes a []byte, or a buffer that gRPC is to free.
func (rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	if buffer, isOne := value.(mem.Buffer); isOne {
		return mem.BufferSlice{buffer}, nil
	}
	return mem.BufferSlice{mem.SliceBuffer(value.([]byte))}, nil
}

// Unmarshal fills a *[]byte, or a *mem.Buffer.
func (rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	if buffer, isOne := value.(*mem.Buffer); isOne {
		*buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	*value.(*[]byte) = data.Materialize()
	return nil
}

// Close ends the connection.
func (c *grpcConn) Close() { _ = c.conn.Close() } // it fails only if it is closed

// dialOptions says how to connect to a backend and to call it.
func dialOptions(place sockets.Endpoint) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(sockets.DialerTo(place)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: sockets.FirstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: sockets.LastBackoff},
			MinConnectTimeout: sockets.ConnectTimeout,
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // but what no peer has processed is sent again
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	}
}

// securityOptions says how a backend is trusted, and so what its calls name as their authority.
func securityOptions(address config.Backend, security *config.BackendTLS) []grpc.DialOption {
	if security != nil {
		return []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(security.ForHost(address.Host)))}
	}
	authority := address.RPC.Address
	if address.RPC.Network == "unix" {
		authority = address.Host
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(authority),
	}
}

// Traits returns none: such a server is any.
func (*grpcConn) Traits() Traits { return Traits{} }
