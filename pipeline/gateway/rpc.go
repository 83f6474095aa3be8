package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/pipelinepb"
)

const (
	firstBackoff   = 50 * time.Millisecond
	lastBackoff    = 2 * time.Second
	connectTimeout = 3 * time.Second
	askAgain       = time.Second // after a health service that failed
	streamWindow   = 1 << 20     // bytes in flight of one message
	connWindow     = 8 << 20     // of all messages on a connection
)

// rpc asks a server over gRPC, on one HTTP/2 connection.
type rpc struct {
	conn   *grpc.ClientConn
	client pipelinepb.PipelineServiceClient
}

func newRPC(address backendAddress, security *backendTLS) (*rpc, error) {
	options := append(dialOptions(address.rpc), securityOptions(address, security)...)
	conn, err := grpc.NewClient("passthrough:///"+address.rpc.address, options...)
	if err != nil {
		return nil, fmt.Errorf("--backend %s: %w", address.name, err)
	}
	return &rpc{conn, pipelinepb.NewPipelineServiceClient(conn)}, nil
}

// ask calls the server. A call for which there was no connection has no peer. The end of the time
// may be seen here first or there: it is context.DeadlineExceeded.
func (c *rpc) ask(ctx context.Context, request *pipelinepb.Request, header http.Header, limit deadline) (*pipelinepb.Response, error) {
	ctx = metadata.NewOutgoingContext(ctx, outgoing(header, limit))
	var seenBy peer.Peer
	var trailer metadata.MD
	response, err := c.client.Inference(ctx, request, grpc.Peer(&seenBy), grpc.Trailer(&trailer))
	switch {
	case err == nil:
		return response, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case seenBy.Addr == nil && status.Code(err) == codes.Unavailable:
		return nil, errNeverLeft
	case status.Code(err) == codes.DeadlineExceeded && len(trailer.Get(errNoKey)) == 0:
		return nil, context.DeadlineExceeded // the backend's gRPC has a clock, too
	}
	return nil, refusalOf(err, trailer)
}

func (c *rpc) close() { _ = c.conn.Close() } // it fails only if it is closed

// dialOptions says how to connect to a backend and to call it.
func dialOptions(place endpoint) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(dialerTo(place)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastBackoff},
			MinConnectTimeout: connectTimeout,
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
func securityOptions(address backendAddress, security *backendTLS) []grpc.DialOption {
	if security != nil {
		return []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(security.forHost(address.host)))}
	}
	authority := address.rpc.address
	if address.rpc.network == "unix" {
		authority = address.host
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(authority),
	}
}

// watch reports the health of the server: the health service says it, and a server without one
// serves as soon as there is a connection.
func (c *rpc) watch(ctx context.Context, report func(health)) {
	for {
		err := c.follow(ctx, report)
		if ctx.Err() != nil {
			return
		}
		c.afterHealth(ctx, err, report)
	}
}

// follow listens to the health service until that ends.
func (c *rpc) follow(ctx context.Context, report func(health)) error {
	watching, err := healthpb.NewHealthClient(c.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	for err == nil {
		var said *healthpb.HealthCheckResponse
		if said, err = watching.Recv(); err != nil {
			break
		}
		if said.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			report(health{state: stateServing})
		} else {
			report(health{stateConnected, "it says " + said.GetStatus().String()})
		}
	}
	return err
}

// afterHealth draws the conclusion from the end of the health service's word, and waits until it
// is worth asking again.
func (c *rpc) afterHealth(ctx context.Context, err error, report func(health)) {
	failed := status.Convert(err)
	connection := c.conn.GetState()
	switch {
	case failed.Code() == codes.Unimplemented && connection == connectivity.Ready:
		report(health{state: stateServing})
		c.conn.WaitForStateChange(ctx, connectivity.Ready)
		report(health{stateDown, "the connection was lost"})
	case connection == connectivity.Ready:
		report(health{stateConnected, "its health is not known: " + failed.Message()})
		c.waitWhile(ctx, connectivity.Ready)
	default:
		report(health{stateDown, failed.Message()})
		if connection == connectivity.TransientFailure {
			c.conn.WaitForStateChange(ctx, connectivity.TransientFailure) // it tries on its own
		}
	}
}

// waitWhile waits until the connection leaves a state, but not for long.
func (c *rpc) waitWhile(ctx context.Context, current connectivity.State) {
	waiting, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	c.conn.WaitForStateChange(waiting, current)
}
