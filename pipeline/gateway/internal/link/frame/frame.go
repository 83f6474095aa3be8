// Package frame is what a link says.
package frame

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"pipeline/gateway/internal/buffers"
)

// The link is what the gateway speaks with the server whose child it is, on a Unix socket: frames,
// of many requests at once, answered in any order. pipeline/frontends/link/server.py describes them and has
// the other side. All numbers are big-endian:
//
//	u32 size of what follows, u8 kind, u64 id, body
//
// A message that is longer than MostPieceBytes is cut: More and at last its own kind.
const (
	Ask      = 1  // i64 nanoseconds or -1, u16 size of the traceparent, traceparent, [headers,] Request
	Cancel   = 2  // the caller has left
	More     = 3  // the next piece of a request
	Ping     = 4  // to be answered at once
	Ready    = 16 // u8 version, u8 whether the server is ready; the first frame
	Answer   = 17 // Response
	Failure  = 18 // u16 HTTP status, i32 err_no, u16 Retry-After or 0, text
	MoreBack = 19 // the next piece of an answer
	Pong     = 20 // to a PING

	Version       = 2
	HeadedVersion = 3 // the same, with the headers in every ASK: see headerField
	HeadBytes     = 13
	countedBytes  = 9 // of the head: kind and id
	readyBytes    = 2
	FailedBytes   = 8
	AskedBytes    = 10

	MostPieceBytes = 64 << 10 // of a frame's body: others' frames pass between two pieces
	MostTraceBytes = 1 << 10  // of a traceparent; a real one has 55
	MostFieldBytes = 32 << 10 // of the headers; longer ones than maxMetadataBytes go to the door if there is one
)

// Frame is one from the server.
type Frame struct {
	Kind byte
	ID   uint64
	Body []byte
}

// AppendHead appends the head of a frame whose body has so many bytes.
func AppendHead(data []byte, size int, kind byte, id uint64) []byte {
	data = binary.BigEndian.AppendUint32(data, uint32(countedBytes+size))
	return binary.BigEndian.AppendUint64(append(data, kind), id)
}

// Read returns the next frame, of a kind from first to last, its body in a buffer to be
// released.
func Read(source *bufio.Reader, first, last byte) (Frame, error) {
	head, err := source.Peek(HeadBytes)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	size := int64(binary.BigEndian.Uint32(head)) - countedBytes
	found := Frame{Kind: head[4], ID: binary.BigEndian.Uint64(head[5:])}
	if size < 0 || size > MostPieceBytes || found.Kind < first || found.Kind > last {
		return Frame{}, fmt.Errorf("it sent a frame of kind %d with %d bytes", found.Kind, size+countedBytes)
	}
	_, _ = source.Discard(HeadBytes) // which are there
	body := buffers.Get()
	found.Body = slices.Grow(body, int(size))[:size]
	if _, err = io.ReadFull(source, found.Body); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return found, err
}

// ReadyOf reads the body of a READY.
func ReadyOf(body []byte) (isReady, wantsHeaders bool, err error) {
	if len(body) < readyBytes {
		return false, false, fmt.Errorf("it sent a READY of %d bytes", len(body))
	}
	if body[0] != Version && body[0] != HeadedVersion {
		return false, false, fmt.Errorf("it speaks version %d of the link, this gateway version %d: "+
			"build the gateway anew with `python -m pipeline.gateway.build`", body[0], Version)
	}
	return body[1] == 1, body[0] == HeadedVersion, nil
}
