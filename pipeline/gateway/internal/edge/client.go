package edge

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/sequence"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

// mostGrowth bounds how many times larger than its JSON a protobuf is: `0,` is a double.
const mostGrowth = 5

// jsonGrowth is how many times larger than its protobuf an answer in JSON is, roughly, with the protobuf.
const jsonGrowth = 3

// balancer is the PipelineServiceClient of the generated code: it asks whose turn it is.
type balancer struct {
	pipelinepb.PipelineServiceClient // nil: of the other methods no POST is generated

	pool *upstream.Pool
	cfg  config.Config
}

// Inference asks one backend, and another one only if the call cannot have been seen. Its error is a
// *failure.Error, a *fallback or errCallerLeft. What it is called with is in the context's *call.
func (b *balancer) Inference(ctx context.Context, request *pipelinepb.Request, _ ...grpc.CallOption) (*pipelinepb.Response, error) {
	return b.ask(ctx, callOf(ctx), request)
}

// ask is Inference for a call.
func (b *balancer) ask(ctx context.Context, asking *call, request *pipelinepb.Request) (*pipelinepb.Response, error) {
	if b.isTooLarge(request, asking) {
		asking.fallback = &fallback{"size", tooLarge(b.cfg.MessageLimit())}
		return nil, asking.fallback
	}
	data, err := proto.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be written: %w", err)
	}
	asking.forget()
	if err := asking.exchange.share.Need(int64(len(data))); err != nil {
		return nil, err
	}
	call := asking.to(pipelinepb.PipelineService_Inference_FullMethodName)
	call.Data = data
	if call.Step == nil && b.pool.IsSticky() {
		call.Step = sequence.OfPairs(request.GetKey(), request.GetValue())
	}
	answer, err := b.unary(ctx, asking, call)
	if err != nil {
		return nil, err
	}
	return asking.exchange.read(answer)
}

// to returns a call of a method, without its data.
func (c *call) to(method string) *upstream.Call {
	x := c.exchange
	return &upstream.Call{
		Method: method, Limit: c.deadline, Started: x.started, Caller: x.caller, Headers: x, Share: &x.share,
		IsSafe: isIdempotent(x.request.Header), Step: sequence.OfHeader(x.request.Header[sequence.Header]),
	}
}

// unary asks for as long as a backend has to answer. Its error is one of Inference's.
func (b *balancer) unary(ctx context.Context, asking *call, call *upstream.Call) ([]byte, error) {
	if asking.deadline.Text != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, asking.deadline.With(b.cfg.Slack))
		defer cancel()
	}
	answer, err := b.pool.Unary(ctx, call)
	x := asking.exchange
	x.backend = call.Asked
	switch {
	case err == nil:
		x.say(answer.Head)
		return answer.Data, nil
	case x.request.Context().Err() != nil:
		return nil, errCallerLeft
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return nil, tooLate(call.Asked)
	}
	return nil, err
}

// read reads an answer, for which and for its JSON it makes room.
func (x *exchange) read(answer []byte) (*pipelinepb.Response, error) {
	defer buffers.Release(answer)
	if err := x.hold(len(answer)); err != nil {
		return nil, err
	}
	response := &pipelinepb.Response{}
	if err := proto.Unmarshal(answer, response); err != nil {
		return nil, failure.BrokenAnswer(err)
	}
	return response, nil
}

// hold makes room for an answer and its JSON, in the place of the request.
func (x *exchange) hold(size int) error {
	x.share.Keep(memory.RequestBytes)
	bytes := jsonGrowth * int64(size)
	if bytes > x.share.Of.Limit {
		return answerTooHeavy(bytes, x.share.Of.Limit)
	}
	return x.share.Need(bytes)
}

// isTooLarge says whether a backend that has the gateway's limit would refuse the message, though
// the JSON was small enough.
func (b *balancer) isTooLarge(request *pipelinepb.Request, asking *call) bool {
	limit := b.cfg.MaxMessageBytes
	most := int64(len(asking.plain))*mostGrowth + int64(len(asking.exchange.request.URL.Path))
	return most > limit && int64(proto.Size(request)) > limit
}
