package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// errorCode is a value of Response.err_no; pipeline/errors.py has them all.
type errorCode int32

const (
	codeNotImplemented errorCode = 3000
	codeClosed         errorCode = 3001
	codeNoService      errorCode = 3002
	codeOverloaded     errorCode = 3004
	codeTimeout        errorCode = 6000
	codePackage        errorCode = 8000
	codeUnknown        errorCode = 10000
)

// errNoKey names the trailing metadata in which a pipeline server says the errorCode of a failure.
const errNoKey = "pipeline-err-no"

// retryKey names the trailing metadata in which it says when to try again, in ms, as gRPC's own
// retries read it.
const retryKey = "grpc-retry-pushback-ms"

// statusCallerLeft is what log and metrics say of a request whose caller did not wait.
const statusCallerLeft = 499

// refusal is a request's answer when that is no Response of a backend.
type refusal struct {
	status     int
	code       errorCode
	text       string
	allow      string // the methods that a 405 names
	retryAfter int    // seconds after which it may be different; 0: it stays so
	mustClose  bool   // the connection cannot be used for more
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%d, err_no %d: %s", r.status, r.code, r.text)
}

// body returns the refusal in the shape of a Response, so that a caller reads one shape.
func (r *refusal) body() []byte {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	// A struct of a number, a text and empty lists: it cannot fail.
	_ = encoder.Encode(struct {
		ErrNo   errorCode `json:"err_no"`
		ErrMsg  string    `json:"err_msg"`
		Key     [0]string `json:"key"`
		Value   [0]string `json:"value"`
		Tensors [0]string `json:"tensors"`
	}{ErrNo: r.code, ErrMsg: r.text})
	return bytes.TrimRight(buffer.Bytes(), "\n")
}

func notAllowed(method, allowed string) *refusal {
	text := fmt.Sprintf("method %s is not allowed here: use %s", method, allowed)
	return &refusal{status: http.StatusMethodNotAllowed, code: codeNotImplemented, text: text, allow: allowed}
}

func notHTTP(reason string) *refusal {
	text := "this is no valid HTTP/1.1 request: " + reason
	return &refusal{status: http.StatusBadRequest, code: codePackage, text: text, mustClose: true}
}

func headTooLarge() *refusal {
	text := fmt.Sprintf("the request's header fields are longer than %d bytes", maxHeadBytes)
	status := http.StatusRequestHeaderFieldsTooLarge
	return &refusal{status: status, code: codePackage, text: text, mustClose: true}
}

func tooMuchMetadata(size int) *refusal {
	text := fmt.Sprintf("%s: they have %d bytes", metadataTooLarge, size)
	return &refusal{status: http.StatusRequestHeaderFieldsTooLarge, code: codePackage, text: text}
}

func tooLarge(passed sizeLimit) *refusal {
	text := fmt.Sprintf("the request is larger than %s (%d bytes)", passed.key, passed.bytes)
	return &refusal{status: http.StatusRequestEntityTooLarge, code: codePackage, text: text}
}

func tooManyConnections(most int) *refusal {
	text := fmt.Sprintf("%d connections are open, which is all there may be (--max-connections); try again", most)
	return &refusal{status: http.StatusServiceUnavailable, code: codeOverloaded, text: text, retryAfter: 1}
}

// tooHeavy answers a request that there will never be room for.
func tooHeavy(bytes, limit int64) *refusal {
	text := fmt.Sprintf("the request takes about %d bytes of memory, and the gateway has %d (--max-buffered-bytes)", bytes, limit)
	return &refusal{status: http.StatusRequestEntityTooLarge, code: codePackage, text: text}
}

// answerTooLong stands for an answer that is longer as JSON than the door would have it; its status is 200.
func answerTooLong(most int) *refusal {
	text := fmt.Sprintf("the answer is larger than max_json_bytes (%d bytes): ask over gRPC", most)
	return &refusal{status: http.StatusOK, code: codePackage, text: text}
}

// answerTooHeavy is tooHeavy for the answer of a backend.
func answerTooHeavy(bytes, limit int64) *refusal {
	text := fmt.Sprintf("the answer takes about %d bytes of memory, and the gateway has %d (--max-buffered-bytes)", bytes, limit)
	return &refusal{status: http.StatusInternalServerError, code: codePackage, text: text}
}

func badRequest(format string, args ...any) *refusal {
	return &refusal{status: http.StatusBadRequest, code: codePackage, text: fmt.Sprintf(format, args...)}
}

// tooLate answers for a backend that kept still beyond the deadline and the slack.
func tooLate(silent string) *refusal {
	text := fmt.Sprintf("the request's deadline passed before backend %s answered", silent)
	return &refusal{status: http.StatusGatewayTimeout, code: codeTimeout, text: text}
}

func unavailable(text string) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, code: codeClosed, text: text}
}

// failures says how a gRPC status of a backend is answered; of others the gateway runtime knows
// the HTTP status, and codeUnknown is their number.
var failures = map[codes.Code]struct {
	status int
	code   errorCode
}{
	codes.Canceled:           {http.StatusServiceUnavailable, codeClosed}, // by a backend that stops
	codes.InvalidArgument:    {http.StatusBadRequest, codePackage},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, codeTimeout},
	codes.NotFound:           {http.StatusNotFound, codeNoService},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, codeOverloaded},
	codes.FailedPrecondition: {http.StatusBadRequest, codePackage},
	codes.OutOfRange:         {http.StatusBadRequest, codePackage},
	codes.Unimplemented:      {http.StatusNotImplemented, codeNotImplemented},
	codes.Unavailable:        {http.StatusServiceUnavailable, codeClosed},
}

const (
	messageTooLarge  = "a message is larger than the backend's max_message_bytes"
	metadataTooLarge = "the request's authorization, trace and Grpc-Metadata-* headers are longer than the backend takes"
)

// grpcLimits are in the texts of failures that gRPC itself reports, on either side. Their statuses
// alone would have the caller try again what can never work.
var grpcLimits = []struct {
	part   string
	status int
	text   string
}{
	{"larger than max", http.StatusInternalServerError, messageTooLarge},
	{"header list size to send violates the maximum", http.StatusRequestHeaderFieldsTooLarge, metadataTooLarge},
	{"metadata size exceeds", http.StatusRequestHeaderFieldsTooLarge, metadataTooLarge},
}

// overLimit returns the answer to a call that is too large for gRPC; nil: it is not.
func overLimit(failed *status.Status) *refusal {
	for _, limit := range grpcLimits {
		isOfGRPC := failed.Code() == codes.ResourceExhausted || failed.Code() == codes.Internal
		if isOfGRPC && strings.Contains(failed.Message(), limit.part) {
			return &refusal{status: limit.status, code: codePackage, text: limit.text + ": " + failed.Message()}
		}
	}
	return nil
}

// retrySeconds returns when a backend says that there may be a place; one that says nothing: soon.
func retrySeconds(trailer metadata.MD) int {
	if said := trailer.Get(retryKey); len(said) == 1 {
		if ms, err := strconv.ParseUint(said[0], 10, 31); err == nil {
			return max(1, int(ms+999)/1000)
		}
	}
	return 1
}

// refusalOf returns the answer to a call that a backend failed. A pipeline server says in the
// trailing metadata which of its errors it was; for any other server the status has to do.
func refusalOf(err error, trailer metadata.MD) *refusal {
	failed := status.Convert(err)
	answer := &refusal{
		status: runtime.HTTPStatusFromCode(failed.Code()),
		code:   codeUnknown,
		text:   failed.Message(),
	}
	if known, ok := failures[failed.Code()]; ok {
		answer.status, answer.code = known.status, known.code
	}
	said := trailer.Get(errNoKey)
	if tooMuch := overLimit(failed); tooMuch != nil && len(said) == 0 {
		return tooMuch
	}
	if len(said) == 1 {
		if code, err := strconv.ParseInt(said[0], 10, 32); err == nil {
			answer.code = errorCode(code)
			if answer.code == codeOverloaded {
				answer.status, answer.retryAfter = http.StatusServiceUnavailable, retrySeconds(trailer)
			}
		}
	}
	return answer
}
