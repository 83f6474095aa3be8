package edge

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

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
)

const (
	// keepAlive is for the next request on a connection.
	keepAlive = 75 * time.Second

	firstBodyBytes = 4 << 10  // of a body whose length nobody says
	trustedBytes   = 64 << 10 // of a length that is only said: who says it and sends nothing holds no more
)

// readBody returns a request's body as it came. Its error is a *failure.Error or errCallerLeft.
func (x *exchange) readBody(most config.SizeLimit) ([]byte, error) {
	length := x.request.ContentLength
	if length > most.Bytes {
		return nil, tooLarge(most)
	}
	if length == 0 {
		x.hasArrived()
		return nil, nil
	}
	if length < 0 {
		length = firstBodyBytes
	}
	body, err := x.readAll(x.request.Body, trustedBytes, length, most)
	var refused *failure.Error
	switch {
	case err == nil:
		x.hasArrived()
		return body, nil
	case errors.As(err, &refused):
		return nil, err
	}
	return nil, x.bodyFault(err)
}

// readAll returns what a source has, which is perhaps so many bytes, in a buffer to be released: of these
// it believes some at once, and others as they come. It stops as soon as the limit is passed, or there is no
// room for more: then the error is a *failure.Error.
func (x *exchange) readAll(source io.Reader, believed, expected int64, most config.SizeLimit) ([]byte, error) {
	body := buffers.Get()
	for {
		next := max(believed, int64(len(body)), 1)
		if left := expected + 1 - int64(len(body)); left > 0 { // with the end
			next = min(next, left)
		}
		had := cap(body)
		body = slices.Grow(body, int(next))
		if err := x.share.Need(int64(cap(body) - had)); err != nil {
			return nil, err
		}
		for len(body) < cap(body) {
			n, err := source.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if int64(len(body)) > most.Bytes {
				return nil, tooLarge(most)
			}
			if err == io.EOF {
				return body, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

// bodyFault says why the rest of a body is not going to come.
func (x *exchange) bodyFault(err error) error {
	var network *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tooSlow(x.cfg)
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

// unpack undoes a content-encoding. It does so twice: what is small when it is packed is not kept before
// it is known how large it is. Its error is a *failure.Error, or a *fallback of what is broken.
func (x *exchange) unpack(encoding string, packed []byte, most config.SizeLimit) ([]byte, error) {
	var unpacker func(*bytes.Reader, func(io.Reader) error) error
	switch encoding {
	case "gzip", "x-gzip":
		unpacker = gunzip
	case "deflate":
		unpacker = inflate
	default:
		text := fmt.Sprintf("unsupported content-encoding %q: send gzip, deflate or none", encoding)
		return nil, &fallback{"encoding", &failure.Error{
			Status: http.StatusUnsupportedMediaType, ErrNo: failure.CodePackage, Text: text,
		}}
	}
	size := int64(0)
	err := unpacker(bytes.NewReader(packed), func(plain io.Reader) (err error) {
		size, err = io.Copy(io.Discard, io.LimitReader(plain, most.Bytes+1))
		return err
	})
	if size > most.Bytes {
		return nil, tooLarge(most)
	}
	var body []byte
	if err == nil {
		source := bytes.NewReader(packed)
		err = unpacker(source, func(plain io.Reader) (err error) {
			body, err = x.readAll(plain, size, size, most)
			return err
		})
		if err == nil && source.Len() > 0 {
			err = errors.New("there is data behind its end: send one member")
		}
	}
	var refused *failure.Error
	if errors.As(err, &refused) {
		return nil, refused
	}
	if err != nil {
		own := badRequest("the body is not valid %s: %v", strings.TrimPrefix(encoding, "x-"), err)
		return nil, &fallback{"encoding", own}
	}
	return body, nil
}

// reservedFlags of gzip's header say what nobody knows (RFC 1952, 2.3.1.2): package gzip would pass them over.
const (
	flagsAt       = 3
	reservedFlags = 0xe0
)

func gunzip(source *bytes.Reader, use func(io.Reader) error) error {
	var head [flagsAt + 1]byte
	if n, _ := source.ReadAt(head[:], 0); n > flagsAt && head[flagsAt]&reservedFlags != 0 {
		return errors.New("unknown header flags set")
	}
	unzipper := gzipReaders.Get().(*gzip.Reader)
	defer gzipReaders.Put(unzipper)
	if err := unzipper.Reset(source); err != nil {
		return err
	}
	unzipper.Multistream(false)
	return use(unzipper)
}

func inflate(source *bytes.Reader, use func(io.Reader) error) error {
	reader, err := zlib.NewReader(source)
	if err != nil {
		return err
	}
	return use(reader)
}
