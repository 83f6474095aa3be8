// Package failure has the errors that the gateway itself answers.
package failure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
)

// ErrNo is a value of Response.err_no; pipeline/errors.py has them all.
type ErrNo int32

const (
	CodeNotImplemented  ErrNo = 3000
	CodeClosed          ErrNo = 3001
	CodeNoService       ErrNo = 3002
	CodeOverloaded      ErrNo = 3004
	CodeUnauthenticated ErrNo = 3010
	CodeForbidden       ErrNo = 3011
	CodeLimited         ErrNo = 3012
	CodeTimeout         ErrNo = 6000
	CodePackage         ErrNo = 8000
	CodeUnknown         ErrNo = 10000
)

// Error is a request's answer when that is no Response of a backend.
type Error struct {
	Status     int
	ErrNo      ErrNo
	Text       string
	Allow      string // the methods that a 405 names
	RetryAfter int    // seconds after which it may be different; 0: it stays so
	MustClose  bool   // the connection cannot be used for more
	IsRefused  bool   // by a server that has not begun with it: another one may be asked

	Head *Head // which user code said; nil: it said none

	Code codes.Code // that of gRPC if an upstream said one; see GRPC
}

// Head is what user code says of an answer's head over HTTP.
type Head struct {
	Status int
	Header http.Header
}

// GRPC returns the status of gRPC that stands for it.
func (r *Error) GRPC() codes.Code {
	if r.Code != codes.OK {
		return r.Code
	}
	if code, isKnown := byStatus[r.Status]; isKnown {
		return code
	}
	return codes.Internal
}

// byStatus has the statuses of gRPC for those of HTTP with which the gateway itself refuses.
var byStatus = map[int]codes.Code{
	http.StatusBadRequest:                  codes.InvalidArgument,
	http.StatusUnauthorized:                codes.Unauthenticated,
	http.StatusForbidden:                   codes.PermissionDenied,
	http.StatusNotFound:                    codes.NotFound,
	http.StatusRequestEntityTooLarge:       codes.ResourceExhausted,
	http.StatusRequestHeaderFieldsTooLarge: codes.ResourceExhausted,
	http.StatusTooManyRequests:             codes.ResourceExhausted,
	http.StatusNotImplemented:              codes.Unimplemented,
	http.StatusServiceUnavailable:          codes.Unavailable,
	http.StatusGatewayTimeout:              codes.DeadlineExceeded,
}

// Error returns it for logs.
func (r *Error) Error() string {
	return fmt.Sprintf("%d, err_no %d: %s", r.Status, r.ErrNo, r.Text)
}

// Body returns the refusal in the shape of a Response, so that a caller reads one shape.
func (r *Error) Body() []byte {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	// A struct of a number, a text and empty lists: it cannot fail.
	_ = encoder.Encode(struct {
		ErrNo   ErrNo     `json:"err_no"`
		ErrMsg  string    `json:"err_msg"`
		Key     [0]string `json:"key"`
		Value   [0]string `json:"value"`
		Tensors [0]string `json:"tensors"`
	}{ErrNo: r.ErrNo, ErrMsg: r.Text})
	return bytes.TrimRight(buffer.Bytes(), "\n")
}

// Unavailable says that nobody can be asked, or that who was asked is gone.
func Unavailable(text string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, ErrNo: CodeClosed, Text: text}
}

// BrokenAnswer means that a backend's answer is not valid.
func BrokenAnswer(err error) *Error {
	return &Error{Status: 500, ErrNo: CodePackage, Text: "the backend's answer cannot be read: " + err.Error()}
}
