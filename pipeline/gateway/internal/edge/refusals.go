package edge

import (
	"fmt"
	"net/http"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/upstream"
)

func notAllowed(method, allowed string) *failure.Error {
	text := fmt.Sprintf("method %s is not allowed here: use %s", method, allowed)
	return &failure.Error{Status: http.StatusMethodNotAllowed, ErrNo: failure.CodeNotImplemented, Text: text, Allow: allowed}
}

func notHTTP(reason string) *failure.Error {
	text := "this is not a valid HTTP/1.1 request: " + reason
	return &failure.Error{Status: http.StatusBadRequest, ErrNo: failure.CodePackage, Text: text, MustClose: true}
}

func headTooLarge() *failure.Error {
	text := fmt.Sprintf("the request's header fields are longer than %d bytes", maxHeadBytes)
	status := http.StatusRequestHeaderFieldsTooLarge
	return &failure.Error{Status: status, ErrNo: failure.CodePackage, Text: text, MustClose: true}
}

func tooMuchMetadata(size int) *failure.Error {
	text := fmt.Sprintf("%s: they have %d bytes", upstream.MetadataTooLarge, size)
	return &failure.Error{Status: http.StatusRequestHeaderFieldsTooLarge, ErrNo: failure.CodePackage, Text: text}
}

func tooLarge(passed config.SizeLimit) *failure.Error {
	text := fmt.Sprintf("the request is larger than %s (%d bytes)", passed.Key, passed.Bytes)
	return &failure.Error{Status: http.StatusRequestEntityTooLarge, ErrNo: failure.CodePackage, Text: text}
}

func tooManyConnections(most int) *failure.Error {
	text := fmt.Sprintf("%d connections are open, which is all there may be (--max-connections); try again", most)
	return &failure.Error{Status: http.StatusServiceUnavailable, ErrNo: failure.CodeOverloaded, Text: text, RetryAfter: 1}
}

func tooManyOfAddress() *failure.Error {
	text := "as many connections of this address are open as there may be (access.connections_per_address); try again"
	return &failure.Error{Status: http.StatusTooManyRequests, ErrNo: failure.CodeLimited, Text: text, RetryAfter: 1}
}

// answerTooLong stands for an answer that is longer as JSON than the door would have it; its status is 200.
func answerTooLong(most int) *failure.Error {
	text := fmt.Sprintf("the answer is larger than max_json_bytes (%d bytes): ask over gRPC", most)
	return &failure.Error{Status: http.StatusOK, ErrNo: failure.CodePackage, Text: text}
}

// answerTooHeavy is tooHeavy for the answer of a backend.
func answerTooHeavy(bytes, limit int64) *failure.Error {
	text := fmt.Sprintf("the answer takes about %d bytes of memory, and the gateway has %d (--max-buffered-bytes)", bytes, limit)
	return &failure.Error{Status: http.StatusInternalServerError, ErrNo: failure.CodePackage, Text: text}
}

func badRequest(format string, args ...any) *failure.Error {
	return &failure.Error{Status: http.StatusBadRequest, ErrNo: failure.CodePackage, Text: fmt.Sprintf(format, args...)}
}

// tooLate answers for a backend that kept still beyond the deadline and the slack.
func tooLate(silent string) *failure.Error {
	text := fmt.Sprintf("the request's deadline passed before backend %s answered", silent)
	return &failure.Error{Status: http.StatusGatewayTimeout, ErrNo: failure.CodeTimeout, Text: text}
}
