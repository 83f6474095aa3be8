package edge

import (
	"maps"
	"net/http"
	"net/http/httputil"
	"slices"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/metadata"
)

const traceHeader = "Traceparent"

// ofConnections are headers that say nothing about a request.
var ofConnections = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// Trace returns the caller's traceparent, of several the last.
func (x *exchange) Trace() string {
	said := x.request.Header[traceHeader]
	if len(said) == 0 {
		return ""
	}
	return said[len(said)-1]
}

// idempotentHeader marks a request that may be done twice: so that it may be sent again when it got lost, and to two backends.
const idempotentHeader = "Pipeline-Idempotent"

// isIdempotent says whether a caller has marked its request so.
func isIdempotent(header http.Header) bool {
	switch header.Get(idempotentHeader) {
	case "1", "true", "True":
		return true
	}
	return false
}

// Metadata returns what an upstream elsewhere is told.
func (x *exchange) Metadata() metadata.MD { return outgoing(x.request.Header) }

// All returns the headers that a server's HTTP port would be told.
func (x *exchange) All() http.Header {
	in := x.request
	told := maps.Clone(in.Header)
	for name := range told {
		if slices.Contains(ofConnections, name) || httpguts.HeaderValuesContainsToken(in.Header["Connection"], name) {
			delete(told, name)
		}
	}
	sayWhoAsks(&httputil.ProxyRequest{In: in, Out: &http.Request{Header: told}}, x.cfg)
	told["Host"] = []string{in.Host}
	return told
}
