package upstream

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/failure"
)

// ErrNoKey names the trailing metadata in which a pipeline server says the ErrNo of a failure.
const ErrNoKey = "pipeline-err-no"

// retryKey names the trailing metadata in which it says when to try again, in ms, as gRPC's own
// retries read it.
const retryKey = "grpc-retry-pushback-ms"

// failures says how a gRPC status of a backend is answered; of others the gateway runtime knows
// the HTTP status, and CodeUnknown is their number.
var failures = map[codes.Code]struct {
	status int
	code   failure.ErrNo
}{
	codes.Canceled:           {http.StatusServiceUnavailable, failure.CodeClosed}, // by a backend that stops
	codes.InvalidArgument:    {http.StatusBadRequest, failure.CodePackage},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, failure.CodeTimeout},
	codes.NotFound:           {http.StatusNotFound, failure.CodeNoService},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, failure.CodeOverloaded},
	codes.FailedPrecondition: {http.StatusBadRequest, failure.CodePackage},
	codes.OutOfRange:         {http.StatusBadRequest, failure.CodePackage},
	codes.Unimplemented:      {http.StatusNotImplemented, failure.CodeNotImplemented},
	codes.Unavailable:        {http.StatusServiceUnavailable, failure.CodeClosed},
}

const (
	messageTooLarge  = "a message is larger than the backend's max_message_bytes"
	MetadataTooLarge = "the request's authorization, trace and Grpc-Metadata-* headers are longer than the backend takes"
)

// grpcLimits are in the texts of failures that gRPC itself reports, on either side. Their statuses
// alone would have the caller try again what can never work.
var grpcLimits = []struct {
	part   string
	status int
	text   string
}{
	{"larger than max", http.StatusInternalServerError, messageTooLarge},
	{"header list size to send violates the maximum", http.StatusRequestHeaderFieldsTooLarge, MetadataTooLarge},
	{"metadata size exceeds", http.StatusRequestHeaderFieldsTooLarge, MetadataTooLarge},
}

// overLimit returns the answer to a call that is too large for gRPC; nil: it is not.
func overLimit(failed *status.Status) *failure.Error {
	for _, limit := range grpcLimits {
		isOfGRPC := failed.Code() == codes.ResourceExhausted || failed.Code() == codes.Internal
		if isOfGRPC && strings.Contains(failed.Message(), limit.part) {
			return &failure.Error{Code: failed.Code(), Status: limit.status, ErrNo: failure.CodePackage, Text: limit.text + ": " + failed.Message()}
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

// failureOf returns the answer to a call that a backend failed. A pipeline server says in the
// trailing metadata which of its errors it was; for any other server the status has to do.
func failureOf(err error, trailer metadata.MD) *failure.Error {
	failed := status.Convert(err)
	answer := &failure.Error{
		Code:   failed.Code(),
		Status: runtime.HTTPStatusFromCode(failed.Code()),
		ErrNo:  failure.CodeUnknown,
		Text:   failed.Message(),
	}
	if known, ok := failures[failed.Code()]; ok {
		answer.Status, answer.ErrNo = known.status, known.code
	}
	said := trailer.Get(ErrNoKey)
	if head := headOfTrailer(trailer); head != nil {
		answer.Status, answer.Head = head.Status, head
	}
	if tooMuch := overLimit(failed); tooMuch != nil && len(said) == 0 {
		return tooMuch
	}
	if len(said) == 1 {
		if code, err := strconv.ParseInt(said[0], 10, 32); err == nil {
			answer.ErrNo = failure.ErrNo(code)
			if answer.ErrNo == failure.CodeOverloaded {
				answer.Status, answer.RetryAfter, answer.IsRefused = http.StatusServiceUnavailable, retrySeconds(trailer), true
			}
			// A stopping server says so about a call that came too late to be begun.
			if answer.ErrNo == failure.CodeClosed && len(trailer.Get(retryKey)) == 1 {
				answer.IsRefused = true
			}
		}
	}
	return answer
}
