package grpcedge

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/reserved"

	gatelink "pipeline/gateway/internal/link"
)

// said is a stream of a caller that says this.
type said struct {
	grpc.ServerStream
	ctx context.Context
}

func (s said) Context() context.Context { return s.ctx }

func TestNoCallerSaysWhatTheGatewaySays(t *testing.T) {
	names := []string{"x-pipeline-roles", "x-forwarded-port"} // of the prefixes
	for name, kind := range reserved.Names {
		if kind == reserved.Gateway || kind == reserved.Proxies {
			names = append(names, name)
		}
	}
	s := &Server{config: Config{Gate: gateOf(t)}}
	for _, name := range names {
		for _, spelt := range []string{name, reserved.MetadataPrefix + name} {
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(spelt, "forged", "x-user", "carol", "authorization", "Bearer t"))
			stream := said{ctx: s.withCaller(ctx, "alice")}
			call, err := s.callOf(stream, ask, &gatelink.Peer{WantsHeaders: true})
			if err != nil {
				t.Fatal(err)
			}
			passed, err := s.passedOf(stream, ask)
			if err != nil {
				t.Fatal(err)
			}
			linked := metadata.MD{}
			for name, value := range frame.Fields(call.Metadata).All() {
				linked.Append(name, value)
			}
			for way, told := range map[string]metadata.MD{"link": linked, "gRPC": passed.Metadata} {
				if !slices.Equal(told[reserved.Caller], []string{"alice"}) || !slices.Equal(told["x-user"], []string{"carol"}) || told["authorization"] != nil {
					t.Errorf("%s by %s: %v", spelt, way, told)
				}
				isGateways := strings.Contains(name, "x-pipeline-")
				if slices.Contains(told[name], "forged") || (isGateways && told[spelt] != nil && spelt != name) {
					t.Errorf("%s by %s: the server hears what was forged", spelt, way)
				}
			}
		}
	}
}
