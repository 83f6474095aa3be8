package grpcedge

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/reserved"
	"pipeline/gateway/internal/sequence"
	"pipeline/gateway/internal/upstream"
)

// Remote asks servers elsewhere, in their own gRPC.
type Remote interface {
	Pass(ctx context.Context, call *upstream.Passed) (*upstream.Message, error)
	Open(ctx context.Context, call *upstream.Passed) (*upstream.Stream, error)
}

// streamMethods are the methods of our services that are not unary.
var streamMethods = []string{"ModelStreamInfer", "inference_stream"}

// idempotentKey marks a call that may be done twice.
const idempotentKey = "pipeline-idempotent"

// isUnary says whether a method has one message each way, as far as that is known.
func (s *Server) isUnary(method string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return slices.Contains(s.config.Services, service) && !slices.Contains(streamMethods, name)
}

// isPassed says whether a remote server gets a caller's header of a name. The call to that server sets the
// headers about the message itself.
func isPassed(name string) bool {
	switch reserved.Of(name) {
	case reserved.Connection, reserved.Proxies:
		return false
	case reserved.Message:
		return name != authorityKey && name != typeKey && name != "user-agent" && name != idempotentKey
	}
	return true
}

// passedOf returns the metadata of a call for a server elsewhere.
func (s *Server) passedOf(stream grpc.ServerStream, method string) (*upstream.Passed, error) {
	told, _ := metadata.FromIncomingContext(stream.Context())
	call := &upstream.Passed{Method: method, Metadata: metadata.MD{}}
	size := 0
	for name, values := range told {
		for _, value := range values {
			size += len(name) + len(value)
		}
		if isPassed(name) && s.mayTell(name) {
			call.Metadata[name] = values
		}
	}
	if size > mostMetadata {
		return nil, status.Errorf(codes.ResourceExhausted, "received metadata size exceeds hard limit (%d vs. %d)", size, mostMetadata)
	}
	if from, ok := peer.FromContext(stream.Context()); ok {
		_, address := s.config.Trust.Origin(from.Addr.String(), told.Get(forwardedKey))
		call.Metadata.Set(forwardedKey, address.String())
	}
	if s.config.FindSteps {
		call.Step = sequence.OfHeader(told.Get(sequence.Header))
	}
	marks := told.Get(idempotentKey)
	call.IsSafe = len(marks) == 1 && (marks[0] == "1" || strings.EqualFold(marks[0], "true"))
	return call, nil
}

// passOnTo answers a call of any method that servers elsewhere have. It says whether one of them had it.
func (s *Server) passOnTo(remote Remote, stream grpc.ServerStream, method string) (isKnown bool, err error) {
	call, err := s.passedOf(stream, method)
	if err != nil {
		return false, err
	}
	if s.isUnary(method) {
		err = s.passUnary(remote, stream, call)
	} else {
		err = s.passStream(remote, stream, call)
	}
	var ended *upstream.Ended
	if errors.As(err, &ended) {
		stream.SetTrailer(ended.Trailer)
		return ended.Said.Code() != codes.Unimplemented, ended.Said.Err()
	}
	return err == nil, s.remoteFailure(stream, err)
}

// remoteFailure returns the status of a call that no server has ended.
func (s *Server) remoteFailure(stream grpc.ServerStream, err error) error {
	var said *failure.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &said) && said.ErrNo == failure.CodeClosed:
		return closed(stream, said.Text)
	case errors.As(err, &said):
		return s.failure(stream, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return contextStatus(err)
	}
	return err // it is a status already
}

// findStep finds out to which sequence a call belongs, if that matters and its metadata do not say: by its
// first message.
func (s *Server) findStep(call *upstream.Passed, message []byte) {
	if !s.config.FindSteps || call.Step != nil {
		return
	}
	_, name, _ := strings.Cut(strings.TrimPrefix(call.Method, "/"), "/")
	switch {
	case name == "ModelInfer" || name == "ModelStreamInfer":
		call.Step = sequence.OfModelInfer(message)
	case name == "inference" || name == "inference_stream":
		call.Step = sequence.OfRequest(message)
	}
}

// passUnary passes one message on, and the answer back.
func (s *Server) passUnary(remote Remote, stream grpc.ServerStream, call *upstream.Passed) error {
	var message asked
	if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, textNothing)
	} else if err != nil {
		return err
	}
	defer message.free()
	share := &memory.Share{Of: s.config.Budget, Own: grantOf(stream).Budget()}
	defer share.End()
	if err := share.Need(int64(len(message.data()))); err != nil {
		return err
	}
	call.Message = message.buffer
	s.findStep(call, message.data())
	found, err := remote.Pass(stream.Context(), call)
	if err != nil {
		return err
	}
	if size := found.Data.Len(); size > s.config.MaxMessageBytes {
		found.Data.Free()
		return s.tooLarge("Sent", size)
	}
	_ = stream.SetHeader(found.Header) // it fails only when they are sent
	stream.SetTrailer(found.Trailer)
	return stream.SendMsg(&answer{mem.BufferSlice{found.Data}})
}

// passStream passes messages on as they come, both ways. Nothing is opened before the caller says something.
func (s *Server) passStream(remote Remote, stream grpc.ServerStream, call *upstream.Passed) error {
	var first asked
	err := stream.RecvMsg(&first)
	hasFirst := err == nil
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	defer first.free()
	if hasFirst {
		s.findStep(call, first.data())
	}
	open, err := remote.Open(stream.Context(), call)
	if err != nil {
		return err
	}
	defer open.Close()
	sending := &sending{open: open}
	defer context.AfterFunc(s.stopping, sending.cut)()
	var refusal atomic.Pointer[error] // of what the caller sends
	if hasFirst {
		sending.send(first.data())
		go func() {
			if err := s.passOn(stream, sending); err != nil {
				refusal.Store(&err)
				open.Close()
			}
		}()
	} else {
		sending.end()
	}
	err = s.passBack(stream, open)
	if refused := refusal.Load(); refused != nil {
		return *refused
	}
	if err == nil && sending.isCut() {
		return closed(stream, textStopped)
	}
	return err
}

// passBack passes a server's messages to the caller, up to the end of the call.
func (s *Server) passBack(stream grpc.ServerStream, open *upstream.Stream) error {
	header, err := open.Header()
	if err == nil {
		_ = stream.SendHeader(header) // it fails if the caller is gone, as what is sent next does
	}
	for {
		data, err := open.Recv()
		if errors.Is(err, io.EOF) {
			stream.SetTrailer(open.Trailer())
			return nil
		}
		if err != nil {
			return err
		}
		if size := data.Len(); size > s.config.MaxMessageBytes {
			data.Free()
			return s.tooLarge("Sent", size)
		}
		if err := stream.SendMsg(&answer{mem.BufferSlice{data}}); err != nil {
			return err
		}
	}
}
