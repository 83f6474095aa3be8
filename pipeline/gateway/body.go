package main

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// keepAlive is for the next request on a connection.
	keepAlive = 75 * time.Second

	firstBodyBytes  = 4 << 10 // of a body whose length nobody says
	trustedBytes    = 1 << 20 // of a length that is only said
	keptBufferBytes = 64 << 10
	initialUnpacked = 4 // times the packed size
)

// bodyBuffers keeps the buffers of small bodies for the next ones.
var bodyBuffers = sync.Pool{New: func() any { return new([]byte) }}

// releaseBody gives back a buffer that nobody reads any more.
func releaseBody(body []byte) {
	if cap(body) > 0 && cap(body) <= keptBufferBytes {
		body = body[:0]
		bodyBuffers.Put(&body)
	}
}

// readBody returns a request's body as it came. Its error is a *refusal or errCallerLeft.
func (x *exchange) readBody() ([]byte, error) {
	maxBytes := x.cfg.maxMessageBytes
	length := x.request.ContentLength
	if length > maxBytes {
		return nil, tooLarge(maxBytes)
	}
	if length == 0 {
		x.hasArrived()
		return nil, nil
	}
	body := *bodyBuffers.Get().(*[]byte)
	if length < 0 {
		length = firstBodyBytes
	}
	body = slices.Grow(body, int(min(length, trustedBytes)))
	for {
		n, err := x.request.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > maxBytes {
			return nil, tooLarge(maxBytes)
		}
		if err == io.EOF {
			x.hasArrived()
			return body, nil
		}
		if err != nil {
			return nil, x.bodyFault(err)
		}
		if len(body) == cap(body) {
			body = slices.Grow(body, len(body))
		}
	}
}

// bodyFault says why the rest of a body is not going to come.
func (x *exchange) bodyFault(err error) error {
	var network *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		text := fmt.Sprintf("the request's body did not arrive within %g s", x.cfg.patience.Seconds())
		return &refusal{status: http.StatusRequestTimeout, code: codeTimeout, text: text, mustClose: true}
	case x.request.Context().Err() != nil, errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return errCallerLeft
	case strings.Contains(err.Error(), "long trailer"): // package http has no name for it
		return headTooLarge()
	}
	return notHTTP(err.Error())
}

// encodingOf returns the content-encoding of a request, of several the last; "": none.
func encodingOf(header http.Header) string {
	encodings := header["Content-Encoding"]
	if len(encodings) == 0 {
		return ""
	}
	encoding := strings.ToLower(encodings[len(encodings)-1])
	if encoding == "identity" {
		return ""
	}
	return encoding
}

var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

// unpack undoes a content-encoding. Its error is a *refusal, or a *handOver of what is broken.
func unpack(encoding string, packed []byte, maxBytes int64) ([]byte, error) {
	source := bytes.NewReader(packed)
	var reader io.Reader
	var err error
	switch encoding {
	case "gzip", "x-gzip":
		unzipper := gzipReaders.Get().(*gzip.Reader)
		defer gzipReaders.Put(unzipper)
		if err = unzipper.Reset(source); err == nil {
			unzipper.Multistream(false)
		}
		reader = unzipper
	case "deflate":
		reader, err = zlib.NewReader(source)
	default:
		text := fmt.Sprintf("unsupported content-encoding %q: send gzip, deflate or none", encoding)
		return nil, &handOver{"encoding", &refusal{
			status: http.StatusUnsupportedMediaType, code: codePackage, text: text,
		}}
	}
	var plain bytes.Buffer
	if err == nil {
		plain.Grow(min(len(packed)*initialUnpacked, trustedBytes))
		_, err = io.Copy(&plain, io.LimitReader(reader, maxBytes+1))
	}
	if int64(plain.Len()) > maxBytes {
		return nil, tooLarge(maxBytes)
	}
	if err == nil && source.Len() > 0 {
		err = errors.New("there is data behind its end: send one member")
	}
	if err != nil {
		own := badRequest("the body is not valid %s: %v", strings.TrimPrefix(encoding, "x-"), err)
		return nil, &handOver{"encoding", own}
	}
	return plain.Bytes(), nil
}
