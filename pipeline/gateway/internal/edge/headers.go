package edge

import (
	"maps"
	"net/http"
	"net/http/httputil"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/reserved"
)

const traceHeader = "Traceparent"

// Trace returns the caller's traceparent, of several the last.
func (x *exchange) Trace() string {
	said := x.request.Header[traceHeader]
	if len(said) == 0 {
		return ""
	}
	return said[len(said)-1]
}

// idempotentHeader marks a request that may be done twice: so that it may be sent again when it got lost,
// and to two backends.
const idempotentHeader = "Pipeline-Idempotent"

// isIdempotent says whether a caller has marked its request so.
func isIdempotent(header http.Header) bool {
	switch header.Get(idempotentHeader) {
	case "1", "true", "True":
		return true
	}
	return false
}

// Metadata returns the metadata for an upstream elsewhere.
func (x *exchange) Metadata() metadata.MD {
	told := outgoing(x.request.Header)
	if name := x.grant.Name(); name != "" {
		told[reserved.Caller] = []string{name}
	}
	return told
}

// All returns the headers that a server's HTTP port would receive.
func (x *exchange) All() http.Header {
	in := x.request
	told := maps.Clone(in.Header)
	for name := range told {
		if reserved.Of(strings.ToLower(name)) == reserved.Connection || httpguts.HeaderValuesContainsToken(in.Header["Connection"], name) {
			delete(told, name)
		}
	}
	x.sayWhoAsks(&httputil.ProxyRequest{In: in, Out: &http.Request{Header: told}})
	told["Host"] = []string{in.Host}
	return told
}
