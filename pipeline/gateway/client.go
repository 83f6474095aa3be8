package main

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"pipeline/gateway/pipelinepb"
)

// mostGrowth bounds how many times larger than its JSON a protobuf is: `0,` is a double.
const mostGrowth = 5

// jsonGrowth is how many times larger than its protobuf an answer in JSON is, roughly, with the protobuf.
const jsonGrowth = 3

// balancer is the PipelineServiceClient of the generated code: it asks whose turn it is.
type balancer struct {
	pool *pool
	cfg  config
}

// Inference asks one backend, and another one only if the call cannot have been seen. Its error is a
// *refusal, a *handOver or errCallerLeft. What it is called with is in the context's *call.
func (b *balancer) Inference(ctx context.Context, request *pipelinepb.Request, _ ...grpc.CallOption) (*pipelinepb.Response, error) {
	asking := callOf(ctx)
	if b.isTooLarge(request, asking) {
		asking.judge = &handOver{"size", tooLarge(b.cfg.messageLimit())}
		return nil, asking.judge
	}
	asking.forget()
	ctx, cancel := b.limited(ctx, asking.deadline)
	defer cancel()
	x := asking.exchange
	var asked []*backend
	for {
		chosen := pick(b.pool.candidates.Load().rpc, &b.pool.turns.rpc, asked)
		if chosen == nil {
			return nil, b.pool.nobody()
		}
		x.backend = chosen.name
		response, err := chosen.ask(ctx, request, x.request.Header, asking.deadline)
		switch {
		case err == nil:
			return response, x.hold(response)
		case x.request.Context().Err() != nil:
			return nil, errCallerLeft
		case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
			return nil, tooLate(chosen.name)
		case !errors.Is(err, errNeverLeft):
			return nil, err
		}
		asked = append(asked, chosen)
		b.pool.stats.retries.Inc()
	}
}

// hold makes room for an answer and its JSON, in the place of the request.
func (x *exchange) hold(response *pipelinepb.Response) error {
	x.share.keep(requestBytes)
	bytes := jsonGrowth * int64(proto.Size(response))
	if bytes > x.share.of.limit {
		return answerTooHeavy(bytes, x.share.of.limit)
	}
	return x.share.need(bytes)
}

// isTooLarge says whether a backend that has the gateway's limit would refuse the message, though
// the JSON was small enough.
func (b *balancer) isTooLarge(request *pipelinepb.Request, asking *call) bool {
	limit := b.cfg.maxMessageBytes
	most := int64(len(asking.plain))*mostGrowth + int64(len(asking.exchange.request.URL.Path))
	return most > limit && int64(proto.Size(request)) > limit
}

// limited bounds a call by its deadline and the time that the backend has to answer to it.
func (b *balancer) limited(ctx context.Context, limit deadline) (context.Context, context.CancelFunc) {
	if limit.text == "" {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit.with(b.cfg.slack))
}
