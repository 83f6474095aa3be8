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
// of many requests at once, answered in any order. pipeline/doors/link.py describes them and has
// the other side. All numbers are big-endian:
//
//	u32 size of what follows, u8 kind, u64 id, body
const (
	frameAsk     = 1  // i64 nanoseconds or -1, u16 size of the traceparent, traceparent, Request
	frameCancel  = 2  // the caller has left
	frameReady   = 16 // u8 version, u8 whether the server is ready; the first frame
	frameAnswer  = 17 // Response
	frameFailure = 18 // u16 HTTP status, i32 err_no, text

	linkVersion    = 1
	frameHeadBytes = 13
	countedBytes   = 9 // of the head: kind and id
	readyBytes     = 2
	failedBytes    = 6
	askedBytes     = 10

	mostTraceBytes = 1 << 10 // of a traceparent; a real one has 55
)

// frame is one from the server.
type frame struct {
	kind byte
	id   uint64
	body []byte
}

// askFrame returns a request as it goes to the server, but for its id, in a buffer to be released.
func askFrame(request *pipelinepb.Request, traceparent string, limit deadline) ([]byte, error) {
	timeout := int64(-1)
	if limit.text != "" {
		timeout = int64(limit.after)
	}
	data := *bodyBuffers.Get().(*[]byte)
	size := proto.Size(request) // which is kept, and used below
	data = slices.Grow(data, frameHeadBytes+askedBytes+len(traceparent)+size)
	data = appendHead(data, askedBytes+len(traceparent)+size, frameAsk, 0)
	data = binary.BigEndian.AppendUint64(data, uint64(timeout))
	data = binary.BigEndian.AppendUint16(data, uint16(len(traceparent)))
	data = append(data, traceparent...)
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(data, request)
}

// setID gives a frame its id.
func setID(data []byte, id uint64) { binary.BigEndian.PutUint64(data[5:], id) }

// cancelFrame tells the server that nobody waits for an answer.
func cancelFrame(id uint64) []byte {
	return appendHead(*bodyBuffers.Get().(*[]byte), 0, frameCancel, id)
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
	if size < 0 || found.kind < first || found.kind > last {
		return frame{}, fmt.Errorf("it sent a frame of kind %d with %d bytes", found.kind, size+countedBytes)
	}
	_, _ = source.Discard(frameHeadBytes) // which are there
	found.body, err = readSized(source, size)
	return found, err
}

// readSized returns the next size bytes. It believes a large size as the bytes come.
func readSized(source io.Reader, size int64) ([]byte, error) {
	body := *bodyBuffers.Get().(*[]byte)
	for int64(len(body)) < size {
		next := int(min(size-int64(len(body)), max(trustedBytes, int64(len(body)))))
		body = slices.Grow(body, next)
		n, err := io.ReadFull(source, body[len(body):len(body)+next])
		body = body[:len(body)+n]
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
	}
	return body, nil
}

// readyOf reads the body of a READY.
func readyOf(body []byte) (isReady bool, err error) {
	if len(body) < readyBytes {
		return false, fmt.Errorf("it sent a READY of %d bytes", len(body))
	}
	if body[0] != linkVersion {
		return false, fmt.Errorf("it speaks version %d of the link, this gateway version %d: "+
			"build the gateway anew with `python -m pipeline.gateway.build`", body[0], linkVersion)
	}
	return body[1] == 1, nil
}

// answerOf reads an ANSWER or a FAILURE, which is a *refusal.
func answerOf(answer frame) (*pipelinepb.Response, error) {
	if answer.kind == frameFailure {
		return nil, failureOf(answer.body)
	}
	response := &pipelinepb.Response{}
	if err := proto.Unmarshal(answer.body, response); err != nil {
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
	}
	if answer.status < 100 || answer.status > 999 { // nothing else can be written
		return brokenAnswer(fmt.Errorf("a failure with the status %d", answer.status))
	}
	answer.retryAfter = answer.code == codeOverloaded
	return answer
}

func brokenAnswer(err error) *refusal {
	return &refusal{status: 500, code: codePackage, text: "the backend's answer cannot be read: " + err.Error()}
}
