package grpcedge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/accesslog"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/reserved"
)

const (
	traceKey     = "traceparent"
	timeoutKey   = "pipeline-timeout"  // when a server has to answer, beside the deadline of the call
	errorsKey    = "triton_grpc_error" // the first error of a stream of Triton's protocol is its status
	authorityKey = ":authority"
	typeKey      = "content-type"
	forwardedKey = "x-forwarded-for"
)

// handle answers a call of any method.
func (s *Server) handle(_ any, stream grpc.ServerStream) (err error) {
	started, method, known := time.Now(), "", ""
	method, _ = grpc.MethodFromServerStream(stream)
	defer func() { s.over(stream, method, known, err, time.Since(started)) }()
	if remote := s.config.Remote; remote != nil {
		isKnown, err := s.passOnTo(remote, stream, method)
		if isKnown {
			known = method
		}
		return err
	}
	clients := s.upstreams.Links()
	for _, client := range clients {
		said := client.Peer()
		if said == nil {
			continue
		}
		kind, isKnown := said.Methods[method]
		if !isKnown {
			return status.Error(codes.Unimplemented, textNoMethod)
		}
		known = method
		call, err := s.callOf(stream, method, said)
		if err != nil {
			return err
		}
		if kind.IsStream {
			return s.stream(stream, clients, call)
		}
		return s.unary(stream, clients, call)
	}
	return closed(stream, textNobody)
}

// callOf returns what a server receives besides the messages.
func (s *Server) callOf(stream grpc.ServerStream, method string, said *link.Peer) (*link.Call, error) {
	ctx := stream.Context()
	call := &link.Call{Method: method}
	call.Deadline, _ = ctx.Deadline()
	told, _ := metadata.FromIncomingContext(ctx)
	if from, ok := peer.FromContext(ctx); ok {
		caller, address := s.config.Trust.Origin(from.Addr.String(), told.Get(forwardedKey))
		if call.Caller = caller; said.WantsHeaders {
			call.Metadata = link.AppendField(call.Metadata, forwardedKey, address.String())
		}
	}
	size := 0
	for name, values := range told {
		isTold := said.WantsHeaders && name != authorityKey && name != typeKey && reserved.Of(name) != reserved.Proxies && s.mayTell(name)
		isTold = isTold || name == timeoutKey || name == errorsKey || (name == traceKey && said.WantsTrace)
		for _, value := range values {
			if size += len(name) + len(value); isTold {
				call.Metadata = link.AppendField(call.Metadata, name, value)
			}
		}
	}
	if size > mostMetadata {
		return nil, status.Errorf(codes.ResourceExhausted, "received metadata size exceeds hard limit (%d vs. %d)", size, mostMetadata)
	}
	return call, nil
}

// over counts a call that has ended, and has the log tell of it.
func (s *Server) over(stream grpc.ServerStream, method, known string, err error, took time.Duration) {
	s.config.Observe(known, status.Code(err), took)
	if !s.config.Log.Wants() {
		return
	}
	entry := &accesslog.Entry{Action: method, Status: status.Code(err).String(), Took: took}
	told, _ := metadata.FromIncomingContext(stream.Context())
	entry.Trace = last(told.Get(traceKey))
	if from, ok := peer.FromContext(stream.Context()); ok {
		entry.Address, _ = s.config.Trust.Origin(from.Addr.String(), told.Get(forwardedKey))
	}
	if granted, isGranted := stream.(*grantedStream); isGranted {
		entry.Caller, entry.Bytes = granted.grant.Name(), granted.sent
	}
	s.config.Log.Write(entry)
}

func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// mayTell reports whether a server receives a caller's metadata of this name; the gate decides who the
// caller is.
func (s *Server) mayTell(name string) bool {
	if reserved.IsGateways(name) {
		return name == reserved.Caller && s.config.Gate != nil
	}
	return s.config.Trust.Allows(name)
}

// unary answers one message with one.
func (s *Server) unary(stream grpc.ServerStream, clients []*link.Client, call *link.Call) error {
	message := asked{client: clients[0], method: call.Method}
	defer message.free()
	if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, textNothing)
	} else if err != nil {
		return err
	}
	share := &memory.Share{Of: s.config.Budget, Own: grantOf(stream).Budget()}
	defer share.End()
	if err := share.Need(int64(len(message.data()))); err != nil {
		return s.failure(stream, err)
	}
	call.Budget, call.Block = share, message.block
	err := link.ErrNeverLeft
	for _, client := range clients {
		var found link.Answer
		if found, err = client.Unary(stream.Context(), call, message.data()); err == nil {
			return s.answer(stream, &found)
		}
		if !errors.Is(err, link.ErrNeverLeft) {
			break
		}
	}
	return s.failure(stream, err)
}

// answer sends what a server has answered, and how its call ended.
func (s *Server) answer(stream grpc.ServerStream, found *link.Answer) error {
	end := found.End
	if end.Code != 0 {
		found.Release()
		return endOf(stream, &end)
	}
	if size := found.Size(); size > s.config.MaxMessageBytes {
		found.Release()
		return s.tooLarge("Sent", size)
	}
	sendTrailers(stream, end.Trailers)
	return stream.SendMsg(&answer{piecesOf(found)})
}

// piecesOf returns the message of an answer, which is released when gRPC has written it.
func piecesOf(found *link.Answer) mem.BufferSlice {
	owner := &releaser{owner: found}
	owner.pieces.Store(1)
	defer owner.Put(nil)
	if found.Parts == nil {
		owner.pieces.Add(1)
		return mem.BufferSlice{mem.NewBuffer(&found.Data, owner)}
	}
	pieces := make(mem.BufferSlice, len(found.Parts))
	for at := range found.Parts {
		part := &found.Parts[at]
		if mem.IsBelowBufferPoolingThreshold(cap(*part)) { // that reports to nobody when it is written
			pieces[at] = mem.SliceBuffer(bytes.Clone(*part))
			continue
		}
		owner.pieces.Add(1)
		pieces[at] = mem.NewBuffer(part, owner)
	}
	return pieces
}

// releaser frees an answer whose pieces are written. gRPC takes nothing of it.
type releaser struct {
	owner  *link.Answer
	pieces atomic.Int32
}

func (r *releaser) Get(int) *[]byte { panic("nothing is taken of an answer") }

func (r *releaser) Put(*[]byte) {
	if r.pieces.Add(-1) == 0 {
		r.owner.Release()
	}
}

// stream answers messages with messages, as they come.
func (s *Server) stream(stream grpc.ServerStream, clients []*link.Client, call *link.Call) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var open *link.Stream
	err := link.ErrNeverLeft
	for _, client := range clients {
		if open, err = client.Open(ctx, call); !errors.Is(err, link.ErrNeverLeft) {
			break
		}
	}
	if err != nil {
		return s.failure(stream, err)
	}
	defer open.Close()
	sending := &sending{open: open}
	defer context.AfterFunc(s.stopping, sending.cut)()
	var refusal atomic.Pointer[error] // of what the caller sends
	go func() {
		if err := s.passOn(stream, sending); err != nil {
			refusal.Store(&err)
			cancel()
		}
	}()
	for {
		data, err := open.Recv()
		if refused := refusal.Load(); refused != nil {
			return *refused
		}
		if errors.Is(err, io.EOF) {
			if end := open.End(); end.Code != 0 || !sending.isCut() {
				return endOf(stream, end)
			}
			return closed(stream, textStopped)
		}
		if err != nil {
			return s.failure(stream, err)
		}
		if len(data) > s.config.MaxMessageBytes {
			return s.tooLarge("Sent", len(data))
		}
		if err := stream.SendMsg(&answer{mem.BufferSlice{mem.SliceBuffer(data)}}); err != nil {
			return err
		}
	}
}

// passOn sends a server the caller's messages, up to their end. Its error is the caller's answer.
func (s *Server) passOn(stream grpc.ServerStream, sending *sending) error {
	for {
		var message asked
		err := stream.RecvMsg(&message)
		if errors.Is(err, io.EOF) {
			sending.end()
			return nil
		}
		if err != nil {
			return err
		}
		isTaken := sending.send(message.data())
		message.free()
		if !isTaken {
			return nil // Recv tells why
		}
	}
}

// sender is an open call of a server.
type sender interface {
	Send(data []byte) error
	CloseSend() error
}

// sending is the caller's side of a stream. It ends once: with the caller's last word, or when the edge
// stops.
type sending struct {
	lock             sync.Mutex
	open             sender
	hasEnded, wasCut bool
}

// send passes a message on; false: the server takes no more.
func (s *sending) send(data []byte) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return !s.hasEnded && s.open.Send(data) == nil
}

// end tells the server that nothing follows.
func (s *sending) end() {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !s.hasEnded {
		s.hasEnded = true
		_ = s.open.CloseSend() // if it fails the call has ended, which Recv tells
	}
}

// cut ends a stream of which the caller may have more to say.
func (s *sending) cut() {
	s.lock.Lock()
	s.wasCut = !s.hasEnded
	s.lock.Unlock()
	s.end()
}

func (s *sending) isCut() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.wasCut
}
