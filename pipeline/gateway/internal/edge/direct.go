package edge

import (
	"bytes"
	"strings"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

// mostPassedBytes is the longest body that is passed on unchanged. A server reads longer JSON in pieces,
// between other work; here it has its own core.
const mostPassedBytes = 64 << 10

// tensorsField begins what a server reads and writes ten times slower as JSON than as protobuf.
var tensorsField = []byte(`"tensors"`)

// direct answers an inference whose upstreams are local: the generated code, which makes calls of requests,
// is not needed for a call without gRPC. Its error is one of Inference's.
func (g *Handler) direct(asked *call, name, method string, takesJSON bool) error {
	answer, err := []byte(nil), error(nil)
	if takesJSON && canPass(asked.plain, name, method) {
		answer, err = g.client.passed(asked, "/"+name+"/"+method)
	} else {
		answer, err = g.translated(asked, name, method)
	}
	if err != nil {
		return err
	}
	if len(answer) > g.marshaler.most {
		answer = answerTooLong(g.marshaler.most).Body()
	}
	x := asked.exchange
	x.Header()["Content-Type"] = jsonTypes // and its length is the server's to say, if it is not long
	if len(answer) > countedBytes {
		x.sayLength(len(answer))
	}
	_, _ = g.writerFor(x).Write(answer) // to a caller that has left
	buffers.Release(answer)
	return nil
}

// canPass reports whether a body and its path can be passed on unchanged.
func canPass(body []byte, name, method string) bool {
	return len(body) <= mostPassedBytes && !bytes.Contains(body, tensorsField) && !strings.Contains(name, "\n") && !strings.Contains(method, "\n")
}

// passed asks with an unchanged body, and returns the body of the answer. Its error is one of Inference's.
func (b *balancer) passed(asked *call, path string) ([]byte, error) {
	call := asked.to(upstream.JSON)
	call.Path, call.Data = path, asked.plain
	answer, err := b.unary(asked.exchange.request.Context(), asked, call)
	asked.forget()
	return answer, err
}

// translated asks in protobuf, and returns the answer as JSON. Its error is one of Inference's.
func (g *Handler) translated(asked *call, name, method string) ([]byte, error) {
	request := &pipelinepb.Request{}
	if err := g.marshaler.decode(asked, request); err != nil {
		return nil, err
	}
	request.Name, request.Method = name, method
	response, err := g.client.ask(asked.exchange.request.Context(), asked, request)
	if err != nil {
		return nil, err
	}
	return g.marshaler.Marshal(response)
}

// countedBytes of an answer are counted by package http, if they are all of it.
const countedBytes = 2 << 10

// jsonTypes is the header of every answer in JSON. It is not written to.
var jsonTypes = []string{JSONType}
