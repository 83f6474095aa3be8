package edge

import (
	"net/http"
	"strings"

	"pipeline/gateway/internal/failure"
)

// streamTypes are the content types in which a door sends an answer part by part.
var streamTypes = []string{"text/event-stream", "application/x-ndjson"}

// mayWantParts says whether a caller names the type of a stream: what else it accepts, and which it likes
// best, the
// door weighs.
func mayWantParts(header http.Header) bool {
	for _, accepted := range header["Accept"] {
		accepted = strings.ToLower(accepted)
		for _, each := range streamTypes {
			if strings.Contains(accepted, each) {
				return true
			}
		}
	}
	return false
}

// inferInParts leaves a request to the HTTP port of a backend, whose parts are passed on as they come.
func (g *Handler) inferInParts(x *exchange) {
	if g.web.isUnknown() {
		x.refuseEarly(noParts())
		return
	}
	g.web.forward(x)
}

// noParts refuses a stream where all backends are known by their gRPC ports alone.
func noParts() *failure.Error {
	text := "an answer in parts needs a backend's HTTP port: --backend host:rpc_port/http_port. " +
		"Accept application/json, or ask over gRPC"
	return &failure.Error{Status: http.StatusNotImplemented, ErrNo: failure.CodeNotImplemented, Text: text}
}
