package link

import (
	"errors"
	"fmt"

	"pipeline/gateway/internal/link/frame"
)

// Errors of a call that the server has not begun.
var (
	// ErrNeverLeft says that the server cannot have begun the call: another one may be asked.
	ErrNeverLeft = errors.New("the request has not left")
	// ErrNoMethod says that the server has no such method, or that it is of the other kind.
	ErrNoMethod = errors.New("the server has no such method")
	// ErrMetadata says that there is too much of it.
	ErrMetadata = fmt.Errorf("the request's metadata has more than %d bytes", frame.MaxMetadataBytes)
	// ErrTooLarge says that the server takes no message of this size.
	ErrTooLarge = errors.New("the message is larger than the server takes")
)

// LostError says that the connection was lost while the server may have worked on the call.
type LostError struct{ Why string }

func (e *LostError) Error() string { return "the backend went away with the request: " + e.Why }

// Reason says why a call was reset.
type Reason = frame.Reason

// LeftError says that a POST, of which nothing was begun, is for the server's HTTP port.
type LeftError struct{ ByHead bool } // whatever its body is

func (e *LeftError) Error() string { return "the server leaves it to its HTTP port" }

// ResetError says that the server has dropped a call.
type ResetError struct {
	Reason Reason
	Text   string
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("the backend dropped the request (reason %d): %s", e.Reason, e.Text)
}

// asError returns the caller's error: a request that is safe to repeat counts as never sent.
func (e *ResetError) asError() error {
	switch e.Reason {
	case frame.ReasonRefused:
		return ErrNeverLeft
	case frame.ReasonTooLarge:
		return ErrTooLarge
	case frame.ReasonNoMethod:
		return ErrNoMethod
	case frame.ReasonLeft:
		return &LeftError{e.Text != ""}
	}
	return e
}
