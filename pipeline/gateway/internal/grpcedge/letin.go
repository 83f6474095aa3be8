package grpcedge

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/reserved"
)

// letIn admits streams, and all calls that are passed to a server.
func (s *Server) letIn(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !s.isHere(stream.Context(), info.FullMethod) {
		return status.Error(codes.Unimplemented, textNoMethod)
	}
	ctx, cancel := endingEarly(s.traced(stream.Context()))
	defer cancel()
	granted := &grantedStream{ServerStream: stream, ctx: ctx}
	if s.config.Gate != nil {
		grant, refused := s.config.Gate.Let(granted.ctx, s.askedOf(granted.ctx, info.FullMethod))
		if refused != nil {
			if err := granted.ctx.Err(); err != nil { // in the gate's queue
				return contextStatus(err)
			}
			stream.SetTrailer(trailersOf(refused))
			return status.Error(refused.GRPC(), short(refused.Text))
		}
		defer grant.Done()
		granted.grant, granted.ctx = grant, s.withCaller(granted.ctx, grant.Caller.Name)
	}
	return next(service, granted)
}

// endingEarly returns a context that ends just before the caller's deadline. At the deadline gRPC resets
// the stream. A caller that receives the reset before its own timer fires reports a removed stream, and
// perhaps a cancellation.
func endingEarly(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, hasOne := ctx.Deadline()
	if !hasOne {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(mostEarly, time.Until(deadline)/20)))
}

// traced returns a context whose metadata say to which trace the call belongs.
func (s *Server) traced(ctx context.Context) context.Context {
	if s.config.Tracing == nil {
		return ctx
	}
	told, _ := metadata.FromIncomingContext(ctx)
	told = told.Copy()
	told.Set(traceKey, s.config.Tracing.Begin(last(told.Get(traceKey))))
	return metadata.NewIncomingContext(ctx, told)
}

// letInUnary is letIn for what is answered here.
func (s *Server) letInUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !s.isHere(ctx, info.FullMethod) {
		return nil, status.Error(codes.Unimplemented, textNoMethod)
	}
	if s.config.Gate == nil {
		return next(ctx, request)
	}
	grant, refused := s.config.Gate.Let(ctx, s.askedOf(ctx, info.FullMethod))
	if refused != nil {
		_ = grpc.SetTrailer(ctx, trailersOf(refused))
		return nil, status.Error(refused.GRPC(), short(refused.Text))
	}
	defer grant.Done()
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
	told.Set(reserved.Caller, name)
	for name := range told {
		if reserved.Of(name) == reserved.Credential && !s.config.Trust.Names(name) {
			told.Delete(name)
		}
	}
	return metadata.NewIncomingContext(ctx, told)
}

// grantedStream is a stream whose context says who asks, and whose messages are counted as that caller's.
type grantedStream struct {
	grpc.ServerStream
	ctx   context.Context
	grant *access.Grant
	owed  time.Duration // to wait before more is sent
	sent  int64
}

// grantOf returns that of a call; nil: there is no gate.
func grantOf(stream grpc.ServerStream) *access.Grant {
	if granted, isGranted := stream.(*grantedStream); isGranted {
		return granted.grant
	}
	return nil
}

// Context returns it.
func (s *grantedStream) Context() context.Context { return s.ctx }

// RecvMsg returns the next message, as fast as the caller may send.
func (s *grantedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if got, isOurs := message.(*asked); isOurs {
		if wait := s.grant.Received(len(got.data())); wait > 0 {
			clock.Sleep(s.ctx, wait)
		}
	}
	return nil
}

// SendMsg sends a message, as fast as the caller may be sent.
func (s *grantedStream) SendMsg(message any) error {
	if s.owed > 0 {
		clock.Sleep(s.ctx, s.owed)
	}
	if said, isOurs := message.(*answer); isOurs {
		s.sent += int64(said.pieces.Len())
		s.owed = s.grant.Sent(said.pieces.Len())
	}
	return s.ServerStream.SendMsg(message)
}

func trailersOf(refused *failure.Error) metadata.MD {
	trailers := metadata.Pairs(errNoKey, strconv.Itoa(int(refused.ErrNo)))
	if refused.RetryAfter > 0 {
		trailers.Set(retryKey, strconv.Itoa(refused.RetryAfter*1000))
	}
	return trailers
}
