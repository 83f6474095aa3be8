// Package frame writes and reads the frames of the link. docs/gateway.md describes the format ("The link");
// pipeline/frontends/link/frames.py is the server's side.
package frame

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
	Hello   = 1  // JSON; the first frame of each side
	Open    = 2  // i64 ns left or -1, u8 and u16 sizes of what follows: caller, metadata; then data
	Headers = 3  // fields
	Data    = 4  // a message, or a piece of one
	End     = 5  // u8 code, u16 status, i32 err_no, u16 retry after, u16 and u16 sizes: text, trailers; then data
	Reset   = 6  // u8 reason, text
	Credit  = 7  // u32 bytes
	Ping    = 8  // to be answered at once, with the same id
	Pong    = 9  //
	State   = 10 // u8 whether the server is ready, u32 calls in flight
	Goaway  = 11 // u64 the last id that is taken, text
	Freed   = 12 // of the server: u64 offsets of blocks that it has read; ours: the id of a call whose answer we have read

	More    = 1 // the message continues in the next frame
	Last    = 2 // this side sends no more messages
	Message = 4 // there is data of a message, maybe 0 bytes
	Placed  = 8 // the data are Parts, which say where the message lies

	// Version is that of the format. Both sides are of one version; those before it had other frames or limits.
	Version = 7

	HeadBytes   = 16
	OpenBytes   = 11
	EndBytes    = 13
	creditBytes = 4
	stateBytes  = 5
	goawayBytes = 8
	partBytes   = 20
	MaxBytes    = 64 << 10 // at most, so that others' frames pass between two of a long message

	// A side may send so many bytes of DATA of a call before the other one gives credit for more.
	CallCredit   = 1 << 20
	StreamCredit = 128 << 10 // of a stream, where what is not taken is held

	MaxCallerBytes = 255
)

// MaxMetadataBytes is the most metadata of a call.
const MaxMetadataBytes = 32 << 10

// Frame is one from the other side. Its body is in a buffer that has to be released.
type Frame struct {
	Kind, Flags byte
	Method      uint16
	ID          uint64
	Body        *Buffer
}

// Has says whether a flag is set.
func (f Frame) Has(flag byte) bool { return f.Flags&flag != 0 }

func AppendHead(data []byte, size int, kind, flags byte, method uint16, id uint64) []byte {
	data = binary.BigEndian.AppendUint32(data, uint32(size))
	data = binary.BigEndian.AppendUint16(append(data, kind, flags), method)
	return binary.BigEndian.AppendUint64(data, id)
}

// Append adds a frame that needs no cutting.
func Append(data []byte, kind, flags byte, id uint64, payload []byte) []byte {
	return append(AppendHead(data, len(payload), kind, flags, 0, id), payload...)
}

// AppendOpen adds the first frame of a call, with as much of its message as there is room for, and returns
// what
// is left of that. The time left is that of now.
func AppendOpen(data []byte, flags byte, method uint16, id uint64, what *Opened, now time.Time, message []byte) (all, left []byte) {
	size := OpenBytes + len(what.Caller) + len(what.Metadata)
	if room := MaxBytes - size; len(message) > room && flags&Placed == 0 {
		message, left = message[:room], message[room:]
		flags = flags&^Last | More
	}
	data = AppendHead(data, size+len(message), Open, flags, method, id)
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

// Greeting is what a side says first.
type Greeting struct {
	Version int     `json:"version"`
	Secret  string  `json:"secret,omitempty"`
	Limits  Limits  `json:"limits"`
	Methods []Entry `json:"methods,omitempty"`
	Trace   bool    `json:"trace,omitempty"`   // traceparent is wanted as metadata
	Headers bool    `json:"headers,omitempty"` // all headers are wanted as metadata
	Memory  Memory  `json:"memory,omitzero"`   // comes along as a descriptor
}

// Memory is that of a server, and which of its regions is the gateway's to write to.
type Memory struct {
	Region      uint32 `json:"region"`
	RegionBytes int64  `json:"region_bytes"` // 0: there is none
}

// Limits are what a side takes.
type Limits struct {
	CallCredit   int64 `json:"call_credit"`
	StreamCredit int64 `json:"stream_credit"`
	Calls        int   `json:"calls,omitempty"`
	MessageBytes int64 `json:"message_bytes,omitempty"`
}

// Entry is a line of the table of methods.
type Entry struct {
	ID       uint16 `json:"id"`
	Name     string `json:"name"`
	IsStream bool   `json:"stream,omitempty"`
}

// AppendHello adds our HELLO.
func AppendHello(data []byte, secret string) []byte {
	return AppendGreeting(data, Greeting{Version: Version, Secret: secret, Limits: Limits{CallCredit: CallCredit, StreamCredit: StreamCredit}})
}

// ReadHello reads the server's first frame, which may also say why there is no link.
func ReadHello(got Frame) (Greeting, error) {
	var said Greeting
	payload := got.Body.Data
	if got.Kind == Goaway && len(payload) >= goawayBytes {
		return said, fmt.Errorf("it refuses the link: %s", payload[goawayBytes:])
	}
	if got.Kind != Hello {
		return said, fmt.Errorf("it does not begin with a HELLO: %s", otherVersion)
	}
	if err := json.Unmarshal(payload, &said); err != nil {
		return said, fmt.Errorf("it sent a HELLO that cannot be read: %w", err)
	}
	if said.Version != Version {
		return said, fmt.Errorf("it speaks version %d of the link, %s", said.Version, otherVersion)
	}
	if said.Limits.CallCredit <= 0 || said.Limits.StreamCredit <= 0 {
		return said, fmt.Errorf("it sent a HELLO without credit")
	}
	return said, nil
}

var otherVersion = fmt.Sprintf("this gateway version %d: rebuild the gateway with `python -m pipeline.gateway.build`", Version)

// Read returns the next frame.
func Read(source *bufio.Reader) (Frame, error) {
	head, err := source.Peek(HeadBytes)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	size := binary.BigEndian.Uint32(head)
	found := Frame{
		Kind: head[4], Flags: head[5],
		Method: binary.BigEndian.Uint16(head[6:]), ID: binary.BigEndian.Uint64(head[8:]),
	}
	if size > MaxBytes || found.Kind < Hello || found.Kind > Freed {
		return Frame{}, fmt.Errorf("it sent a frame of kind %d with %d bytes", found.Kind, size)
	}
	_, _ = source.Discard(HeadBytes) // which are there
	found.Body = NewBuffer(int(size))
	if _, err = io.ReadFull(source, found.Body.Data); err != nil {
		found.Body.Release()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return found, nil
}

// ReadEnd returns what an END says, and where its data begin.
func ReadEnd(body []byte) (end Ended, data []byte, err error) {
	if len(body) < EndBytes {
		return end, nil, fmt.Errorf("an END of %d bytes", len(body))
	}
	text := int(binary.BigEndian.Uint16(body[9:]))
	trailers := int(binary.BigEndian.Uint16(body[11:]))
	if len(body) < EndBytes+text+trailers {
		return end, nil, fmt.Errorf("an END of %d bytes with %d of text and %d of trailers", len(body), text, trailers)
	}
	end = Ended{
		Code:       uint32(body[0]),
		Status:     int(binary.BigEndian.Uint16(body[1:])),
		ErrNo:      int32(binary.BigEndian.Uint32(body[3:])),
		RetryAfter: int(binary.BigEndian.Uint16(body[7:])),
	}
	if end.Status < 200 || end.Status > 999 { // nothing else can be written
		return end, nil, fmt.Errorf("an END with the status %d", end.Status)
	}
	rest := body[EndBytes:]
	if text > 0 {
		end.Text = string(rest[:text])
	}
	if trailers > 0 {
		end.Trailers = slices.Clone(rest[text : text+trailers])
	}
	return end, rest[text+trailers:], nil
}

// Part is a piece of a message: some bytes, or where they lie in the server's memory.
type Part struct {
	Bytes        []byte // nil: they lie there
	Region       uint32
	Offset, Size uint64
}

// noRegion precedes bytes that follow.
const noRegion = 1<<32 - 1

// AppendPlace adds a piece that lies in the server's memory.
func AppendPlace(data []byte, region uint32, offset, size uint64) []byte {
	data = binary.BigEndian.AppendUint32(data, region)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(data, offset), size)
}

// AppendBytes adds a piece that is here.
func AppendBytes(data, piece []byte) []byte {
	return append(AppendPlace(data, noRegion, 0, uint64(len(piece))), piece...)
}

// ReadParts returns the pieces of a message.
func ReadParts(data []byte) (parts []Part, err error) {
	for len(data) > 0 {
		if len(data) < partBytes {
			return nil, fmt.Errorf("a place of %d bytes", len(data))
		}
		part := Part{
			Region: binary.BigEndian.Uint32(data),
			Offset: binary.BigEndian.Uint64(data[4:]), Size: binary.BigEndian.Uint64(data[12:]),
		}
		if data = data[partBytes:]; part.Region == noRegion {
			if part.Size > uint64(len(data)) {
				return nil, fmt.Errorf("%d bytes of a message, and %d follow", part.Size, len(data))
			}
			part.Bytes, data = data[:part.Size:part.Size], data[part.Size:]
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// AppendFreed says that the answer to a call is read, or which of a gateway's blocks are.
func AppendFreed(data []byte, id uint64, offsets ...uint64) []byte {
	data = AppendHead(data, 8*len(offsets), Freed, 0, 0, id)
	for _, each := range offsets {
		data = binary.BigEndian.AppendUint64(data, each)
	}
	return data
}

// ReadFreed returns which blocks are free.
func ReadFreed(body []byte) (offsets []uint64, err error) {
	if len(body)%8 != 0 {
		return nil, fmt.Errorf("it frees %d bytes of places", len(body))
	}
	for at := 0; at < len(body); at += 8 {
		offsets = append(offsets, binary.BigEndian.Uint64(body[at:]))
	}
	return offsets, nil
}

func AppendReset(data []byte, id uint64, reason Reason, text string) []byte {
	data = AppendHead(data, 1+len(text), Reset, 0, 0, id)
	return append(append(data, byte(reason)), text...)
}

func ReadReset(body []byte) (Reason, string) {
	if len(body) == 0 {
		return ReasonBroken, ""
	}
	return Reason(body[0]), string(body[1:])
}

func AppendCredit(data []byte, id uint64, bytes int64) []byte {
	return binary.BigEndian.AppendUint32(AppendHead(data, creditBytes, Credit, 0, 0, id), uint32(bytes))
}

func ReadCredit(body []byte) (int64, error) {
	if len(body) != creditBytes {
		return 0, fmt.Errorf("it sent a CREDIT of %d bytes", len(body))
	}
	return int64(binary.BigEndian.Uint32(body)), nil
}

func ReadState(body []byte) (isReady bool, inFlight int, err error) {
	if len(body) < stateBytes {
		return false, 0, fmt.Errorf("it sent a STATE of %d bytes", len(body))
	}
	return body[0] == 1, int(binary.BigEndian.Uint32(body[1:])), nil
}

func ReadGoaway(body []byte) (lastID uint64, text string, err error) {
	if len(body) < goawayBytes {
		return 0, "", fmt.Errorf("it sent a GOAWAY of %d bytes", len(body))
	}
	return binary.BigEndian.Uint64(body), string(body[goawayBytes:]), nil
}

// Opened is what an OPEN says before its data.
type Opened struct {
	Deadline time.Time // zero: none; the time left is computed when the frame is written
	Caller   string
	Metadata []byte // Fields
}

// Ended is what an END says before its data.
type Ended struct {
	Code       uint32 // gRPC's status; 0: OK
	Status     int    // HTTP's
	ErrNo      int32  // ours; 0: none
	RetryAfter int    // seconds; 0: not said
	Text       string
	Trailers   Fields // what the server said last
}

// Reason says why a call was reset.
type Reason byte

// Reasons of a RESET.
const (
	ReasonCanceled Reason = 1 // the caller has left
	ReasonRefused  Reason = 2 // it was not begun: safe to repeat
	ReasonTooLarge Reason = 3 // a message is larger than the limit
	ReasonOverrun  Reason = 4 // more was sent than there was credit for
	ReasonBroken   Reason = 5 // anything else that is not a call
	ReasonNoMethod Reason = 6 // nothing of this number is there
	ReasonLeft     Reason = 7 // a POST is for the HTTP port; with a text: whatever its body is
)

// The server's side, for servers that are played ---------------------------------------------

// AppendGreeting adds a HELLO.
func AppendGreeting(data []byte, said Greeting) []byte {
	payload, err := json.Marshal(said)
	if err != nil {
		panic(err) // numbers and texts: it cannot fail
	}
	return Append(data, Hello, 0, 0, payload)
}

// ReadOpen returns what an OPEN says, and its data. The time is negative if none was given.
func ReadOpen(body []byte) (timeLeft time.Duration, what Opened, data []byte, err error) {
	if len(body) < OpenBytes {
		return 0, what, nil, fmt.Errorf("an OPEN of %d bytes", len(body))
	}
	caller, metadata := int(body[8]), int(binary.BigEndian.Uint16(body[9:]))
	if len(body) < OpenBytes+caller+metadata {
		return 0, what, nil, fmt.Errorf("an OPEN of %d bytes with %d of a caller and %d of metadata", len(body), caller, metadata)
	}
	rest := body[OpenBytes:]
	what.Caller, what.Metadata = string(rest[:caller]), slices.Clone(rest[caller:caller+metadata])
	return time.Duration(binary.BigEndian.Uint64(body)), what, rest[caller+metadata:], nil
}

// AppendEnd adds an END; nil means no data.
func AppendEnd(data []byte, id uint64, end Ended, message []byte) []byte {
	flags := byte(Last)
	if message != nil {
		flags |= Message
	}
	return AppendFlaggedEnd(data, flags, id, end, message)
}

// AppendFlaggedEnd adds an END whose flags are given, as Placed is.
func AppendFlaggedEnd(data []byte, flags byte, id uint64, end Ended, message []byte) []byte {
	data = AppendHead(data, EndBytes+len(end.Text)+len(end.Trailers)+len(message), End, flags, 0, id)
	data = binary.BigEndian.AppendUint16(append(data, byte(end.Code)), uint16(end.Status))
	data = binary.BigEndian.AppendUint32(data, uint32(end.ErrNo))
	for _, each := range []int{end.RetryAfter, len(end.Text), len(end.Trailers)} {
		data = binary.BigEndian.AppendUint16(data, uint16(each))
	}
	return append(append(append(data, end.Text...), end.Trailers...), message...)
}

// AppendState adds a STATE.
func AppendState(data []byte, isReady bool, inFlight int) []byte {
	data = AppendHead(data, stateBytes, State, 0, 0, 0)
	ready := byte(0)
	if isReady {
		ready = 1
	}
	return binary.BigEndian.AppendUint32(append(data, ready), uint32(inFlight))
}

// AppendGoaway adds a GOAWAY.
func AppendGoaway(data []byte, lastID uint64, text string) []byte {
	data = AppendHead(data, goawayBytes+len(text), Goaway, 0, 0, 0)
	return append(binary.BigEndian.AppendUint64(data, lastID), text...)
}
