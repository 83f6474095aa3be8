package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/pipelinepb"
)

// The link is what the gateway speaks with the server whose child it is, on a Unix socket: frames,
// of many requests at once, answered in any order. pipeline/frontends/link/server.py describes them and has
// the other side. All numbers are big-endian:
//
//	u32 size of what follows, u8 kind, u64 id, body
//
// A message that is longer than mostPieceBytes is cut: frameMore and at last its own kind.
const (
	frameAsk      = 1  // i64 nanoseconds or -1, u16 size of the traceparent, traceparent, [headers,] Request
	frameCancel   = 2  // the caller has left
	frameMore     = 3  // the next piece of a request
	framePing     = 4  // to be answered at once
	frameReady    = 16 // u8 version, u8 whether the server is ready; the first frame
	frameAnswer   = 17 // Response
	frameFailure  = 18 // u16 HTTP status, i32 err_no, u16 Retry-After or 0, text
	frameMoreBack = 19 // the next piece of an answer
	framePong     = 20 // to a PING

	linkVersion    = 2
	headedVersion  = 3 // the same, with the headers in every ASK: see headerField
	frameHeadBytes = 13
	countedBytes   = 9 // of the head: kind and id
	readyBytes     = 2
	failedBytes    = 8
	askedBytes     = 10

	mostPieceBytes = 64 << 10 // of a frame's body: others' frames pass between two pieces
	mostTraceBytes = 1 << 10  // of a traceparent; a real one has 55
	mostFieldBytes = 32 << 10 // of the headers; longer ones than maxMetadataBytes go to the door if there is one
)

// frame is one from the server.
type frame struct {
	kind byte
	id   uint64
	body []byte
}

// askMessage returns a request as it goes to the server, behind room for the head of a frame, in a buffer
// to be released.
func askMessage(request *pipelinepb.Request, size int, traceparent string, headers []byte, limit deadline) ([]byte, error) {
	timeout := int64(-1)
	if limit.text != "" {
		timeout = int64(limit.after)
	}
	data := *bodyBuffers.Get().(*[]byte)
	data = slices.Grow(data, frameHeadBytes+askedBytes+len(traceparent)+len(headers)+size)
	data = data[:frameHeadBytes]
	data = binary.BigEndian.AppendUint64(data, uint64(timeout))
	data = binary.BigEndian.AppendUint16(data, uint16(len(traceparent)))
	data = append(data, traceparent...)
	data = append(data, headers...)
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(data, request)
}

func appendHead(data []byte, size int, kind byte, id uint64) []byte {
	data = binary.BigEndian.AppendUint32(data, uint32(countedBytes+size))
	return binary.BigEndian.AppendUint64(append(data, kind), id)
}

// readFrame returns the next frame, of a kind from first to last, its body in a buffer to be
// released.
func readFrame(source *bufio.Reader, first, last byte) (frame, error) {
	head, err := source.Peek(frameHeadBytes)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	size := int64(binary.BigEndian.Uint32(head)) - countedBytes
	found := frame{kind: head[4], id: binary.BigEndian.Uint64(head[5:])}
	if size < 0 || size > mostPieceBytes || found.kind < first || found.kind > last {
		return frame{}, fmt.Errorf("it sent a frame of kind %d with %d bytes", found.kind, size+countedBytes)
	}
	_, _ = source.Discard(frameHeadBytes) // which are there
	body := *bodyBuffers.Get().(*[]byte)
	found.body = slices.Grow(body, int(size))[:size]
	if _, err = io.ReadFull(source, found.body); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return found, err
}

// readyOf reads the body of a READY.
func readyOf(body []byte) (isReady, wantsHeaders bool, err error) {
	if len(body) < readyBytes {
		return false, false, fmt.Errorf("it sent a READY of %d bytes", len(body))
	}
	if body[0] != linkVersion && body[0] != headedVersion {
		return false, false, fmt.Errorf("it speaks version %d of the link, this gateway version %d: "+
			"build the gateway anew with `python -m pipeline.gateway.build`", body[0], linkVersion)
	}
	return body[1] == 1, body[0] == headedVersion, nil
}

// answerOf reads an ANSWER or a FAILURE, which is a *refusal.
func answerOf(kind byte, body []byte) (*pipelinepb.Response, error) {
	if kind == frameFailure {
		return nil, failureOf(body)
	}
	response := &pipelinepb.Response{}
	if err := proto.Unmarshal(body, response); err != nil {
		return nil, brokenAnswer(err)
	}
	return response, nil
}

func failureOf(body []byte) *refusal {
	if len(body) < failedBytes {
		return brokenAnswer(errors.New("a failure without a status"))
	}
	answer := &refusal{
		status: int(binary.BigEndian.Uint16(body)),
		code:   errorCode(int32(binary.BigEndian.Uint32(body[2:]))),
		text:   string(body[failedBytes:]),

		retryAfter: int(binary.BigEndian.Uint16(body[6:])),
	}
	if answer.status < 100 || answer.status > 999 { // nothing else can be written
		return brokenAnswer(fmt.Errorf("a failure with the status %d", answer.status))
	}
	return answer
}

func brokenAnswer(err error) *refusal {
	return &refusal{status: 500, code: codePackage, text: "the backend's answer cannot be read: " + err.Error()}
}
