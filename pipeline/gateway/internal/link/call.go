package link

import (
	"bytes"
	"context"
	"sync"
	"time"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/link/frame"
)

// Call says what a server is asked.
type Call struct {
	Method   string       // a name of the server's table
	Deadline time.Time    // the caller's; zero: none. The time left is computed when the frame is written
	Caller   string       // who asks, for logs; "": nobody says
	Metadata []byte       // Fields
	Budget   Budget       // counts what is held of a long answer; nil: nothing
	Block    *arena.Block // where the message of a unary call lies; nil: in our own memory
}

// Budget counts the bytes of answers that are held.
type Budget interface {
	// Need adds bytes. Its error ends the call, and is what the call returns. The owner of the budget gives the
	// bytes back.
	Need(bytes int64) error
}

// End is how a call ended: gRPC's code, HTTP's status, our err_no, the text, trailers.
type End struct {
	frame.Ended
	Headers Fields // what the server said first
}

// Fields are names and values, as metadata.
type Fields = frame.Fields

// MaxMetadataBytes is the most metadata of a call.
const MaxMetadataBytes = frame.MaxMetadataBytes

// AppendField adds a name, in lower case, and its value to metadata.
func AppendField(fields []byte, name, value string) []byte {
	return frame.AppendField(fields, name, value)
}

// Answer is how a unary call ended, and the message that it was answered with.
type Answer struct {
	End
	Data  []byte   // the message, or nil
	Parts [][]byte // its pieces, of which some lie in the server's memory
	owner *frame.Buffer
	lease *lease
}

// lease is the server's memory that holds an answer, which it keeps until it is notified.
type lease struct {
	conn *conn
	id   uint64
	size int64
}

// Size returns the bytes of the message.
func (a *Answer) Size() int {
	size := len(a.Data)
	for _, part := range a.Parts {
		size += len(part)
	}
	return size
}

// Release gives the memory of the message back, which nobody may read any more.
func (a *Answer) Release() {
	a.owner.Release()
	if a.lease != nil {
		a.lease.conn.memory.Left()
		a.lease.conn.hasRead(a.lease.id, a.lease.size)
	}
	a.owner, a.Data, a.Parts, a.lease = nil, nil, nil, nil
}

// Detach returns the message in one piece, which is the caller's from then on.
func (a *Answer) Detach() []byte {
	if a.Parts != nil {
		whole := bytes.Join(a.Parts, nil)
		a.Release()
		return whole
	}
	data := a.Data
	if a.owner != nil {
		a.owner.Detach()
	}
	a.owner, a.Data = nil, nil
	return data
}

// call is one in flight; all of it is under the lock of its connection.
type call struct {
	id     uint64
	method uint16
	opened frame.Opened
	budget Budget

	// For writing.
	in             *turns
	before, behind *call
	isOpen         bool         // its OPEN is, or may be, on its way
	message        []byte       // what is left of one
	hasMessage     bool         // there is one, of 0 bytes or more
	block          *arena.Block // not nil: the message says where in it the real one lies
	endsSending    bool         // with it, or without one
	hasEnded       bool         // nothing follows any more
	sent           chan struct{}
	credit         int64 // bytes of DATA that the server takes

	// For reading.
	isStream bool
	most     int64           // bytes of DATA that we take while none are held
	window   int64           // bytes that we take now
	consumed int64           // of the bytes that came, and are not given back yet
	pieces   []*frame.Buffer // of a message, as far as it is here
	owed     int64           // bytes of these that are to be given back when it is taken
	messages []message       // of a stream, in whole
	answer   Answer
	err      error
	isOver   bool
	wake     chan struct{} // something came
}

// message is one of a stream, and the credit for it.
type message struct {
	data []byte
	owed int64
}

func (c *call) hasMore() bool { return c.hasMessage || c.endsSending }

func (c *call) flags() (flags byte) {
	if c.hasMessage {
		flags |= frame.Message
	}
	if c.endsSending {
		flags |= frame.Last
	}
	if c.block != nil {
		flags |= frame.Placed
	}
	return flags
}

// unaryCalls are used again when they are over.
var unaryCalls = sync.Pool{New: func() any { return &call{wake: make(chan struct{}, 1)} }}

// Place returns a block of the server's memory for a message of so many bytes, of which that at `lead` is
// aligned; nil: there is no
// room, or no such memory.
func (c *Client) Place(size, lead int) *arena.Block {
	if conn := c.current.Load(); conn != nil {
		return conn.memory.Place(size, lead)
	}
	return nil
}

// Unary asks and waits for the answer. The data may be used again as soon as it returns, but for those in a
// block. Its error is
// one of this package's, that of ctx, or that of the budget.
func (c *Client) Unary(ctx context.Context, what *Call, data []byte) (Answer, error) {
	conn, method, err := c.prepare(what, false)
	if err != nil {
		return Answer{}, err
	}
	if int64(len(data)) > conn.peer.MaxMessageBytes {
		return Answer{}, ErrTooLarge
	}
	asked := unaryCalls.Get().(*call)
	*asked = call{
		wake: asked.wake, pieces: asked.pieces[:0],
		method: method, opened: what.opened(), budget: what.Budget, message: data, hasMessage: true, endsSending: true,
	}
	if what.Block.IsOf(conn.memory) {
		asked.block = what.Block
		region, offset, size := what.Block.Where(data)
		asked.message = frame.AppendPlace(nil, region, offset, size)
	}
	if err := conn.begin(asked); err != nil {
		unaryCalls.Put(asked)
		return Answer{}, err
	}
	select {
	case <-asked.wake:
	case <-ctx.Done():
		if conn.forget(asked) {
			unaryCalls.Put(asked)
			return Answer{}, ctx.Err()
		}
		<-asked.wake // it came at the same moment
	}
	answer, err := asked.answer, asked.err
	asked.answer, asked.opened, asked.budget, asked.block = Answer{}, frame.Opened{}, nil, nil
	unaryCalls.Put(asked)
	return answer, err
}

// prepare returns the connection, and the number of the method there.
func (c *Client) prepare(what *Call, isStream bool) (*conn, uint16, error) {
	conn := c.current.Load()
	if conn == nil {
		return nil, 0, ErrNeverLeft
	}
	method, isKnown := conn.peer.Methods[what.Method]
	if !isKnown || method.IsStream != isStream {
		return nil, 0, ErrNoMethod
	}
	if len(what.Metadata) > MaxMetadataBytes {
		return nil, 0, ErrMetadata
	}
	return conn, method.ID, nil
}

func (c *Call) opened() frame.Opened {
	caller := c.Caller
	if len(caller) > frame.MaxCallerBytes {
		caller = caller[:frame.MaxCallerBytes]
	}
	return frame.Opened{Deadline: c.Deadline, Caller: caller, Metadata: c.Metadata}
}
