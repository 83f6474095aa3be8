package upstream

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/sequence"
)

// Passed is a call of gRPC that is passed on as it came.
type Passed struct {
	Method   string // in full
	Metadata metadata.MD
	Message  mem.Buffer     // of a unary call; it is the caller's to free
	IsSafe   bool           // it may be done twice
	Step     *sequence.Step // nil: of no sequence, or it does not matter
}

// Message is the answer to a unary call.
type Message struct {
	Data            mem.Buffer
	Header, Trailer metadata.MD
}

// Ended is how a server has ended a call that did not go well.
type Ended struct {
	Said    *status.Status
	Trailer metadata.MD
	known   *failure.Error // what it means
}

func (e *Ended) Error() string { return e.known.Error() }

// Unwrap is for errors.As.
func (e *Ended) Unwrap() error { return e.known }

func endedBy(err error, trailer metadata.MD) *Ended {
	return &Ended{status.Convert(err), trailer, failureOf(err, trailer)}
}

// passer is an upstream that takes any call of gRPC.
type passer interface {
	pass(ctx context.Context, call *Passed) (*Message, error)
	open(ctx context.Context, call *Passed) (grpc.ClientStream, error)
}

// Pass asks one backend for a unary call, and another one only if that is safe: see Ask. Its error is an
// *Ended, a
// *failure.Error, or one of package context.
func (p *Pool) Pass(ctx context.Context, call *Passed) (*Message, error) {
	want := &Want{Work: Calls, IsSafe: call.IsSafe, MayHedge: call.IsSafe, Step: call.Step}
	return Ask(ctx, p, want, func(ctx context.Context, chosen *Attempt) (*Message, error) {
		remote, takesAny := chosen.Upstream.(passer)
		if !takesAny {
			return nil, ErrNeverLeft
		}
		end := chosen.Keep()
		answer, err := remote.pass(ctx, call)
		end(outcomeOfPassed(ctx, err))
		return answer, err
	})
}

// outcomeOfPassed is OutcomeOf for a call whose time is the caller's, without any slack.
func outcomeOfPassed(ctx context.Context, err error) Outcome {
	if err != nil && ctx.Err() != nil {
		return Neither
	}
	return OutcomeOf(ctx, err)
}

// Open opens a call with any number of messages at a backend, or at another one if that cannot be reached.
func (p *Pool) Open(ctx context.Context, call *Passed) (*Stream, error) {
	return Ask(ctx, p, &Want{Work: Calls, Step: call.Step}, func(ctx context.Context, chosen *Attempt) (*Stream, error) {
		remote, takesAny := chosen.Upstream.(passer)
		if !takesAny {
			return nil, ErrNeverLeft
		}
		ctx, cancel := context.WithCancel(ctx)
		opened, err := remote.open(ctx, call)
		if err != nil {
			cancel()
			return nil, err
		}
		return &Stream{ClientStream: opened, ctx: ctx, cancel: cancel, end: chosen.Keep()}, nil
	})
}

// Stream is an open call. One may send while another one receives.
type Stream struct {
	grpc.ClientStream
	ctx    context.Context
	cancel context.CancelFunc
	lock   sync.Mutex
	end    func(Outcome) // nil: it is over
}

// Send sends a message, which may be written to afterwards.
func (s *Stream) Send(data []byte) error { return s.SendMsg(append([]byte(nil), data...)) }

// Recv returns the next message, which the caller frees; io.EOF: that was all. Any other error is an *Ended,
// or one of package context.
func (s *Stream) Recv() (mem.Buffer, error) {
	var data mem.Buffer
	err := s.RecvMsg(&data)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, io.EOF):
		s.over(Good)
		return nil, io.EOF
	case s.ctx.Err() != nil:
		s.over(Neither)
		return nil, s.ctx.Err()
	}
	ended := endedBy(err, s.Trailer())
	s.over(OutcomeOf(s.ctx, ended))
	return nil, ended
}

// Close gives the call up, if it is not over.
func (s *Stream) Close() {
	s.over(Neither)
	s.cancel()
}

func (s *Stream) over(outcome Outcome) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.end != nil {
		s.end(outcome)
		s.end = nil
	}
}

// pass is Pass at this server.
func (c *grpcConn) pass(ctx context.Context, call *Passed) (*Message, error) {
	var answer Message
	var seenBy peer.Peer
	call.Message.Ref() // which gRPC frees
	err := c.conn.Invoke(metadata.NewOutgoingContext(ctx, call.Metadata), call.Method, call.Message, &answer.Data,
		grpc.ForceCodecV2(rawCodec{}), grpc.Peer(&seenBy), grpc.Header(&answer.Header), grpc.Trailer(&answer.Trailer))
	switch {
	case err == nil:
		return &answer, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case seenBy.Addr == nil && hasNotLeft(err):
		return nil, ErrNeverLeft
	}
	return nil, endedBy(err, answer.Trailer)
}

// open is Open at this server.
func (c *grpcConn) open(ctx context.Context, call *Passed) (grpc.ClientStream, error) {
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	opened, err := c.conn.NewStream(metadata.NewOutgoingContext(ctx, call.Metadata), both, call.Method, grpc.ForceCodecV2(rawCodec{}))
	switch {
	case err == nil:
		return opened, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case hasNotLeft(err):
		return nil, ErrNeverLeft
	}
	return nil, endedBy(err, nil)
}

// hasNotLeft says whether the status of a call that nobody has seen says so: Canceled, if the connection was
// closed by us.
func hasNotLeft(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled
}
