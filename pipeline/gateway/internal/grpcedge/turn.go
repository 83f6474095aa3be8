package grpcedge

import (
	"context"
	"path"
	"reflect"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/h2guard"
)

// turn is the place of a call among those of its connection. gRPC begins calls in their order, but each in a
// goroutine of its own: without turns, a step of a sequence may reach the server before the step that its
// caller sent first.
type turn struct {
	method   string
	stream   uint32
	arrivals *h2guard.Arrivals // nil: an HTTP server was sent the call
}

// turnOf returns that of a call.
func turnOf(ctx context.Context, method string) turn {
	from, _ := peer.FromContext(ctx)
	if from == nil {
		return turn{}
	}
	conn, _ := from.AuthInfo.(connInfo)
	// gRPC has the number of a stream in a field, and no function that returns it.
	call := reflect.Indirect(reflect.ValueOf(grpc.ServerTransportStreamFromContext(ctx)))
	if conn.arrivals == nil || call.Kind() != reflect.Struct {
		return turn{}
	}
	stream := call.FieldByName("id")
	if !stream.IsValid() || !stream.CanUint() {
		return turn{}
	}
	return turn{method, uint32(stream.Uint()), conn.arrivals}
}

// wait waits for the steps before this one, if the message of a call is a step of a sequence. Another message
// needs no turn.
func (t *turn) wait(ctx context.Context, message []byte) error {
	if t.arrivals == nil {
		return nil
	}
	step := stepOf(t.method, message)
	if step == nil || slices.Contains(streamMethods, path.Base(t.method)) {
		t.pass()
		return nil
	}
	if err := t.arrivals.Wait(ctx, t.stream, step.ID); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// pass lets the next step go.
func (t *turn) pass() {
	if t.arrivals != nil {
		t.arrivals.Pass(t.stream)
		t.arrivals = nil
	}
}

// ofStep returns the turn of a call that is a step of a sequence; nil: it is not one.
func ofStep(stream grpc.ServerStream) *turn {
	if granted, isGranted := stream.(*grantedStream); isGranted && granted.turn.arrivals != nil {
		return &granted.turn
	}
	return nil
}
