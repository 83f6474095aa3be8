package edge

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

var gzipWriters = sync.Pool{New: func() any {
	writer, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is a valid one
	return writer
}}

// zipping packs an answer that is large enough. It takes answers that are written in one piece.
type zipping struct {
	http.ResponseWriter
	minBytes int
}

// Write sends all of an answer's body.
func (z *zipping) Write(body []byte) (int, error) {
	if len(body) < z.minBytes {
		return z.ResponseWriter.Write(body)
	}
	var packed bytes.Buffer
	writer := gzipWriters.Get().(*gzip.Writer)
	writer.Reset(&packed)
	_, err := writer.Write(body) // to memory, as the next: neither fails
	if err == nil {
		err = writer.Close()
	}
	gzipWriters.Put(writer)
	if err != nil {
		return 0, err
	}
	header := z.Header()
	header.Set("Content-Encoding", "gzip")
	header.Set("Content-Length", strconv.Itoa(packed.Len()))
	if _, err := z.ResponseWriter.Write(packed.Bytes()); err != nil {
		return 0, err
	}
	return len(body), nil
}

// acceptsGzip reads Accept-Encoding: gzip, or *, with a weight that is not 0.
func acceptsGzip(header http.Header) bool {
	accepted := false
	for _, line := range header["Accept-Encoding"] {
		for entry := range strings.SplitSeq(line, ",") {
			name, weight, _ := strings.Cut(entry, ";")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "gzip":
				return !isZero(weight)
			case "*":
				accepted = !isZero(weight)
			}
		}
	}
	return accepted
}

// isZero says whether a weight, `q=0.5`, is 0.
func isZero(weight string) bool {
	number, isWeight := strings.CutPrefix(strings.ToLower(strings.TrimSpace(weight)), "q=")
	value, err := strconv.ParseFloat(number, 64)
	return isWeight && err == nil && value == 0
}
