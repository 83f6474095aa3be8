package gatewaytest

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"pipeline/gateway/internal/sockets"
	"pipeline/gateway/pipelinepb"
)

// Double is a pipeline server's gRPC port.
type Double struct {
	pipelinepb.UnimplementedPipelineServiceServer
	answer  Answerer
	Address string // as for --backend
	RPC     sockets.Endpoint
	Server  *grpc.Server
	Health  *grpchealth.Server
	Calls   atomic.Int64
}

func (d *Double) Inference(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
	d.Calls.Add(1)
	return d.answer(ctx, request)
}

type DoubleOptions struct {
	HasNoHealth bool
	IsUnix      bool
	At          string // an address that is free again; "": any
	Server      []grpc.ServerOption
}

// StartDouble starts a gRPC server that serves.
func StartDouble(t *testing.T, answer Answerer, options DoubleOptions) *Double {
	t.Helper()
	d := &Double{answer: answer, Server: grpc.NewServer(options.Server...), Health: grpchealth.NewServer()}
	network, address := "tcp", "127.0.0.1:0"
	if options.IsUnix {
		network, address = "unix", filepath.Join(t.TempDir(), "rpc")
	}
	if options.At != "" {
		address = options.At
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	d.RPC = sockets.Endpoint{Network: network, Address: listener.Addr().String()}
	d.Address = d.RPC.Address
	if options.IsUnix {
		d.Address = "unix:" + d.Address
	}
	pipelinepb.RegisterPipelineServiceServer(d.Server, d)
	if !options.HasNoHealth {
		healthpb.RegisterHealthServer(d.Server, d.Health)
	}
	go func() { _ = d.Server.Serve(listener) }()
	t.Cleanup(d.Server.Stop)
	return d
}
