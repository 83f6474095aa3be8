package link

import (
	"context"
	"io"
)

// Stream is a call with many messages, and many answers. One goroutine may send while another one receives.
type Stream struct {
	ctx  context.Context
	conn *conn
	call *call
}

// Open begins a stream, which ends with ctx if not before. Its error is one of this package's, and it ends
// with
// Close.
func (c *Client) Open(ctx context.Context, what *Call) (*Stream, error) {
	conn, method, err := c.prepare(what, true)
	if err != nil {
		return nil, err
	}
	begun := &call{
		wake: make(chan struct{}, 1), sent: make(chan struct{}, 1),
		method: method, opened: what.opened(), budget: what.Budget, isStream: true,
	}
	if err := conn.begin(begun); err != nil {
		return nil, err
	}
	return &Stream{ctx, conn, begun}, nil
}

// Send sends a message, and waits until the server has credit for all of it. The data may be used again when
// it
// returns. Its error is io.EOF when the call has ended: Recv says how.
func (s *Stream) Send(data []byte) error {
	if int64(len(data)) > s.conn.peer.MaxMessageBytes {
		return ErrTooLarge
	}
	if !s.conn.say(s.call, data, false) {
		return io.EOF
	}
	select {
	case <-s.call.sent:
	case <-s.ctx.Done():
		s.conn.forget(s.call)
		return s.ctx.Err()
	}
	if s.conn.isOver(s.call) {
		return io.EOF
	}
	return nil
}

// CloseSend says that no message follows.
func (s *Stream) CloseSend() error {
	if !s.conn.say(s.call, nil, true) {
		return io.EOF
	}
	return nil
}

// Recv returns the next answer, which is the caller's to keep. Its error is io.EOF when the call has ended,
// and
// End says how; one of this package's; that of ctx, or that of the budget.
func (s *Stream) Recv() ([]byte, error) {
	for {
		data, err, isThere := s.conn.next(s.call)
		if isThere {
			return data, err
		}
		select {
		case <-s.call.wake:
		case <-s.ctx.Done():
			if s.conn.forget(s.call) {
				return nil, s.ctx.Err()
			}
		}
	}
}

// Header returns what the server said before its first answer; it is known when the first Recv returns.
func (s *Stream) Header() Fields {
	s.conn.lock.Lock()
	defer s.conn.lock.Unlock()
	return s.call.answer.Headers
}

// End returns how the call ended, when Recv has returned io.EOF.
func (s *Stream) End() *End {
	s.conn.lock.Lock()
	defer s.conn.lock.Unlock()
	return &s.call.answer.End
}

// Close ends the stream, and notifies the server unless it has ended it.
func (s *Stream) Close() { s.conn.forget(s.call) }
