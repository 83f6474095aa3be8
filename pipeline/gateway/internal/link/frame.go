package link

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// A frame is, with all numbers big-endian,
//
//	u32 size of the payload, u8 kind, u8 flags, u16 method, u64 id, payload
const (
	kindHello   = 1  // JSON; the first frame of each side
	kindOpen    = 2  // i64 ns left or -1, u8 and u16 sizes of what follows: caller, metadata; then data
	kindHeaders = 3  // fields
	kindData    = 4  // a message, or a piece of one
	kindEnd     = 5  // u8 code, u16 status, i32 err_no, u16 retry after, u16 and u16 sizes: text, trailers; then data
	kindReset   = 6  // u8 reason, text
	kindCredit  = 7  // u32 bytes; the id is 0 for those of the connection
	kindPing    = 8  // to be answered at once, with the same id
	kindPong    = 9  //
	kindState   = 10 // u8 whether the server is ready, u32 calls in flight
	kindGoaway  = 11 // u64 the last id that is taken, text

	flagMore    = 1 // the message goes on in the next frame
	flagEnd     = 2 // this side sends no more messages
	flagMessage = 4 // there is data of a message, maybe 0 bytes

	// version is that of the format. Both sides are of one version; 2 and 3 had other frames.
	version = 4

	headBytes    = 16
	openBytes    = 11
	endBytes     = 13
	creditBytes  = 4
	stateBytes   = 5
	goawayBytes  = 8
	payloadBytes = 64 << 10 // at most, so that others' frames pass between two of a long message

	// A side may send so many bytes of DATA before the other one gives credit for more.
	callCredit = 1 << 20
	connCredit = 64 << 20

	maxCallerBytes = 255
)

// MaxMetadataBytes is the most metadata of a call.
const MaxMetadataBytes = 32 << 10

// frame is one from the server. Its body is in a buffer that has to be released.
type frame struct {
	kind, flags byte
	id          uint64
	body        *buffer
}

func (f frame) has(flag byte) bool { return f.flags&flag != 0 }

func appendHead(data []byte, size int, kind, flags byte, method uint16, id uint64) []byte {
	data = binary.BigEndian.AppendUint32(data, uint32(size))
	data = binary.BigEndian.AppendUint16(append(data, kind, flags), method)
	return binary.BigEndian.AppendUint64(data, id)
}

// appendFrame adds a frame that needs no cutting.
func appendFrame(data []byte, kind, flags byte, id uint64, payload []byte) []byte {
	return append(appendHead(data, len(payload), kind, flags, 0, id), payload...)
}

// appendOpen adds the first frame of a call, with as much of its message as there is room for, and returns what
// is left of that. The time left is that of now.
func appendOpen(data []byte, flags byte, method uint16, id uint64, what *Call, now time.Time, message []byte) (all, left []byte) {
	size := openBytes + len(what.Caller) + len(what.Metadata)
	if room := payloadBytes - size; len(message) > room {
		message, left = message[:room], message[room:]
		flags = flags&^flagEnd | flagMore
	}
	data = appendHead(data, size+len(message), kindOpen, flags, method, id)
	timeLeft := int64(-1)
	if !what.Deadline.IsZero() {
		timeLeft = max(0, int64(what.Deadline.Sub(now)))
	}
	data = binary.BigEndian.AppendUint64(data, uint64(timeLeft))
	data = append(data, byte(len(what.Caller)))
	data = binary.BigEndian.AppendUint16(data, uint16(len(what.Metadata)))
	data = append(append(append(data, what.Caller...), what.Metadata...), message...)
	return data, left
}

// hello is what a side says first.
type hello struct {
	Version  int          `json:"version"`
	Secret   string       `json:"secret,omitempty"`
	Limits   helloLimits  `json:"limits"`
	Methods  []helloTable `json:"methods,omitempty"`
	Trace    bool         `json:"trace,omitempty"`   // traceparent is wanted as metadata
	Headers  bool         `json:"headers,omitempty"` // all headers are wanted as metadata
	Software string       `json:"software,omitempty"`
}

type helloLimits struct {
	CallCredit   int64 `json:"call_credit"`
	ConnCredit   int64 `json:"connection_credit"`
	Calls        int   `json:"calls,omitempty"`
	MessageBytes int64 `json:"message_bytes,omitempty"`
}

type helloTable struct {
	ID       uint16 `json:"id"`
	Name     string `json:"name"`
	IsStream bool   `json:"stream,omitempty"`
}

// appendHello adds our HELLO.
func appendHello(data []byte, secret string) ([]byte, error) {
	payload, err := json.Marshal(hello{Version: version, Secret: secret, Limits: helloLimits{CallCredit: callCredit, ConnCredit: connCredit}})
	return appendFrame(data, kindHello, 0, 0, payload), err
}

// readHello reads the server's first frame, which may also say why there is no link.
func readHello(got frame) (hello, error) {
	var said hello
	payload := got.body.data
	if got.kind == kindGoaway && len(payload) >= goawayBytes {
		return said, fmt.Errorf("it refuses the link: %s", payload[goawayBytes:])
	}
	if got.kind != kindHello {
		return said, fmt.Errorf("it does not begin with a HELLO: %s", otherVersion)
	}
	if err := json.Unmarshal(payload, &said); err != nil {
		return said, fmt.Errorf("it sent a HELLO that cannot be read: %w", err)
	}
	if said.Version != version {
		return said, fmt.Errorf("it speaks version %d of the link, %s", said.Version, otherVersion)
	}
	if said.Limits.CallCredit <= 0 || said.Limits.ConnCredit <= 0 {
		return said, fmt.Errorf("it sent a HELLO without credit")
	}
	return said, nil
}

var otherVersion = fmt.Sprintf("this gateway version %d: build the gateway anew with `python -m pipeline.gateway.build`", version)

// readFrame returns the next frame.
func readFrame(source *bufio.Reader) (frame, error) {
	head, err := source.Peek(headBytes)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(head)
	found := frame{kind: head[4], flags: head[5], id: binary.BigEndian.Uint64(head[8:])}
	if size > payloadBytes || found.kind < kindHello || found.kind > kindGoaway {
		return frame{}, fmt.Errorf("it sent a frame of kind %d with %d bytes", found.kind, size)
	}
	_, _ = source.Discard(headBytes) // which are there
	found.body = newBuffer(int(size))
	if _, err = io.ReadFull(source, found.body.data); err != nil {
		found.body.release()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return found, nil
}

// readEnd returns what an END says, and where its data begin.
func readEnd(body []byte) (end End, data []byte, err error) {
	if len(body) < endBytes {
		return end, nil, fmt.Errorf("an END of %d bytes", len(body))
	}
	text := int(binary.BigEndian.Uint16(body[9:]))
	trailers := int(binary.BigEndian.Uint16(body[11:]))
	if len(body) < endBytes+text+trailers {
		return end, nil, fmt.Errorf("an END of %d bytes with %d of text and %d of trailers", len(body), text, trailers)
	}
	end = End{
		Code:       uint32(body[0]),
		Status:     int(binary.BigEndian.Uint16(body[1:])),
		ErrNo:      int32(binary.BigEndian.Uint32(body[3:])),
		RetryAfter: int(binary.BigEndian.Uint16(body[7:])),
	}
	if end.Status < 200 || end.Status > 999 { // nothing else can be written
		return end, nil, fmt.Errorf("an END with the status %d", end.Status)
	}
	rest := body[endBytes:]
	if text > 0 {
		end.Text = string(rest[:text])
	}
	if trailers > 0 {
		end.Trailers = slices.Clone(rest[text : text+trailers])
	}
	return end, rest[text+trailers:], nil
}

func appendReset(data []byte, id uint64, reason Reason, text string) []byte {
	data = appendHead(data, 1+len(text), kindReset, 0, 0, id)
	return append(append(data, byte(reason)), text...)
}

func readReset(body []byte) *ResetError {
	if len(body) == 0 {
		return &ResetError{Reason: ReasonBroken}
	}
	return &ResetError{Reason: Reason(body[0]), Text: string(body[1:])}
}

func appendCredit(data []byte, id uint64, bytes int64) []byte {
	return binary.BigEndian.AppendUint32(appendHead(data, creditBytes, kindCredit, 0, 0, id), uint32(bytes))
}

func readCredit(body []byte) (int64, error) {
	if len(body) != creditBytes {
		return 0, fmt.Errorf("it sent a CREDIT of %d bytes", len(body))
	}
	return int64(binary.BigEndian.Uint32(body)), nil
}

func readState(body []byte) (isReady bool, inFlight int, err error) {
	if len(body) < stateBytes {
		return false, 0, fmt.Errorf("it sent a STATE of %d bytes", len(body))
	}
	return body[0] == 1, int(binary.BigEndian.Uint32(body[1:])), nil
}

func readGoaway(body []byte) (lastID uint64, text string, err error) {
	if len(body) < goawayBytes {
		return 0, "", fmt.Errorf("it sent a GOAWAY of %d bytes", len(body))
	}
	return binary.BigEndian.Uint64(body), string(body[goawayBytes:]), nil
}
