package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/upstream"
)

// askMessage returns a request as it goes to the server, behind room for the head of a frame, in a buffer
// to be released. Its error is a *failure.Error.
func askMessage(call *upstream.Call, wantsHeaders bool) ([]byte, error) {
	timeout := int64(-1)
	if call.Limit.Text != "" {
		timeout = int64(call.Limit.After)
	}
	trace, headers := "", []byte(nil)
	if call.Headers != nil {
		trace = call.Headers.Trace()
	}
	if len(trace) > frame.MostTraceBytes { // which is none
		trace = ""
	}
	if wantsHeaders {
		var told http.Header
		if call.Headers != nil {
			told = call.Headers.All()
		}
		var err error
		if headers, err = headerField(told); err != nil {
			return nil, err
		}
	}
	data := buffers.Get()
	data = slices.Grow(data, frame.HeadBytes+frame.AskedBytes+len(trace)+len(headers)+len(call.Data))
	data = data[:frame.HeadBytes]
	data = binary.BigEndian.AppendUint64(data, uint64(timeout))
	data = binary.BigEndian.AppendUint16(data, uint16(len(trace)))
	data = append(data, trace...)
	data = append(data, headers...)
	return append(data, call.Data...), nil
}

func failureOf(body []byte) *failure.Error {
	if len(body) < frame.FailedBytes {
		return failure.BrokenAnswer(errors.New("a failure without a status"))
	}
	answer := &failure.Error{
		Status: int(binary.BigEndian.Uint16(body)),
		ErrNo:  failure.ErrNo(int32(binary.BigEndian.Uint32(body[2:]))),
		Text:   string(body[frame.FailedBytes:]),

		RetryAfter: int(binary.BigEndian.Uint16(body[6:])),
	}
	if answer.Status < 100 || answer.Status > 999 { // nothing else can be written
		return failure.BrokenAnswer(fmt.Errorf("a failure with the status %d", answer.Status))
	}
	return answer
}
