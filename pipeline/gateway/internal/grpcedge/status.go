package grpcedge

import (
	"context"
	"errors"
	"strconv"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link"
)

const (
	retryKey = "grpc-retry-pushback-ms" // of a trailer
	errNoKey = "pipeline-err-no"        // of a trailer

	textNoMethod = "Method not found!"
	textNobody   = "no backend can be reached"
	textNothing  = "the call has no message"
	textStopped  = "the server has stopped"
	textLate     = "Deadline Exceeded" // as gRPC's libraries in C and Python
	mostText     = 2000                // bytes: callers take 8 KiB of headers in all
)

// endOf returns the status of a call that a server has ended, and sends what goes with it.
func endOf(stream grpc.ServerStream, end *link.End) error {
	sendTrailers(stream, end.Trailers)
	if end.Code == 0 {
		return nil
	}
	return status.Error(codes.Code(end.Code), short(end.Text))
}

func sendTrailers(stream grpc.ServerStream, fields link.Fields) {
	if len(fields) == 0 {
		return
	}
	trailers := metadata.MD{}
	for name, value := range fields.All() {
		trailers.Append(name, value)
	}
	stream.SetTrailer(trailers)
}

// failure returns the status of a call that the link ended with an error.
func (s *Server) failure(stream grpc.ServerStream, err error) error {
	var lost *link.LostError
	var full *failure.Error // of the budget
	switch {
	case errors.As(err, &full):
		trailers := metadata.Pairs(errNoKey, strconv.Itoa(int(full.ErrNo)))
		if full.RetryAfter > 0 {
			trailers.Set(retryKey, strconv.Itoa(full.RetryAfter*1000))
		}
		stream.SetTrailer(trailers)
		return status.Error(codes.ResourceExhausted, short(full.Text))
	case errors.Is(err, link.ErrNeverLeft):
		return closed(stream, textNobody)
	case errors.As(err, &lost):
		return closed(stream, lost.Error())
	case errors.Is(err, link.ErrNoMethod):
		return status.Error(codes.Unimplemented, textNoMethod)
	case errors.Is(err, link.ErrMetadata):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, link.ErrTooLarge):
		return s.tooLarge("Received", s.config.MaxMessageBytes+1)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return contextStatus(err)
	}
	return status.Error(codes.Internal, short(err.Error()))
}

// contextStatus returns the status of a call whose caller has left, or whose time is over.
func contextStatus(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, textLate)
	}
	return status.FromContextError(err).Err()
}

func closed(stream grpc.ServerStream, text string) error {
	stream.SetTrailer(metadata.Pairs(errNoKey, strconv.Itoa(int(failure.CodeClosed))))
	return status.Error(codes.Unavailable, short(text))
}

func (s *Server) tooLarge(what string, size int) error {
	return status.Errorf(codes.ResourceExhausted, "SERVER: %s message larger than max (%d vs. %d)", what, size, s.config.MaxMessageBytes)
}

// short returns a text for a header, where most characters that are no ASCII take three bytes.
func short(text string) string {
	if len(text) <= mostText {
		return text
	}
	end := mostText
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
