package grpcedge

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/failure"
)

var callerKey = strings.ToLower(access.CallerHeader)

// credentialKeys are for the gate alone to read, unless callers may set them.
var credentialKeys = []string{"authorization", "x-api-key"}

// letIn is where streams, and all calls that go on to a server, come in.
func (s *Server) letIn(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !s.isHere(stream.Context(), info.FullMethod) {
		return status.Error(codes.Unimplemented, textNoMethod)
	}
	if s.config.Gate == nil {
		return next(service, stream)
	}
	caller, done, refused := s.config.Gate.Let(s.askedOf(stream.Context(), info.FullMethod))
	if refused != nil {
		stream.SetTrailer(trailersOf(refused))
		return status.Error(refused.GRPC(), short(refused.Text))
	}
	defer done()
	return next(service, &namedStream{stream, s.withCaller(stream.Context(), caller.Name)})
}

// letInUnary is letIn for what is answered here.
func (s *Server) letInUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !s.isHere(ctx, info.FullMethod) {
		return nil, status.Error(codes.Unimplemented, textNoMethod)
	}
	if s.config.Gate == nil {
		return next(ctx, request)
	}
	_, done, refused := s.config.Gate.Let(s.askedOf(ctx, info.FullMethod))
	if refused != nil {
		_ = grpc.SetTrailer(ctx, trailersOf(refused))
		return nil, status.Error(refused.GRPC(), short(refused.Text))
	}
	defer done()
	return next(ctx, request)
}

// isHere says whether a method is there on the port that it was called on.
func (s *Server) isHere(ctx context.Context, method string) bool {
	return access.SideOf(ctx, s.config.Side).Has(access.OfMethod(method))
}

func (s *Server) askedOf(ctx context.Context, method string) *access.Asked {
	told, _ := metadata.FromIncomingContext(ctx)
	asked := &access.Asked{Role: access.OfMethod(method), Action: method, Tokens: access.TokensOf(told.Get)}
	if from, ok := peer.FromContext(ctx); ok {
		_, asked.Address = s.config.Trust.Origin(from.Addr.String(), told.Get(forwardedKey))
		if secured, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			asked.Certificates = secured.State.PeerCertificates
		}
	}
	return asked
}

// withCaller returns a context whose metadata say who asks, and have no credential any more.
func (s *Server) withCaller(ctx context.Context, name string) context.Context {
	told, _ := metadata.FromIncomingContext(ctx)
	told = told.Copy()
	told.Set(callerKey, name)
	for _, name := range credentialKeys {
		if !s.config.Trust.Names(name) {
			told.Delete(name)
		}
	}
	return metadata.NewIncomingContext(ctx, told)
}

// namedStream is a stream whose context says who asks.
type namedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns it.
func (s *namedStream) Context() context.Context { return s.ctx }

func trailersOf(refused *failure.Error) metadata.MD {
	trailers := metadata.Pairs(errNoKey, strconv.Itoa(int(refused.ErrNo)))
	if refused.RetryAfter > 0 {
		trailers.Set(retryKey, strconv.Itoa(refused.RetryAfter*1000))
	}
	return trailers
}
