package upstream

import (
	"iter"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/failure"
)

// statusKey names the trailing metadata in which a pipeline server says the HTTP status that user code gave an answer; its
// headers are beside it.
const statusKey = "pipeline-status"

// Reply is the answer to a call, in a buffer that may be released, and what user code says of its head.
type Reply struct {
	Data []byte
	Head *failure.Head // nil: nothing
}

// headOfEnd returns the head that a link's end says; nil: it is the usual one.
func headOfEnd(status int, fields iter.Seq2[string, string]) *failure.Head {
	head := &failure.Head{Status: status, Header: http.Header{}}
	for name, value := range fields {
		add(head, name, value)
	}
	if status == http.StatusOK && len(head.Header) == 0 {
		return nil
	}
	return head
}

// headOfTrailer returns the head that a server elsewhere says; nil: none, as of all that are no pipeline's.
func headOfTrailer(trailer metadata.MD) *failure.Head {
	said := trailer.Get(statusKey)
	if len(said) != 1 {
		return nil
	}
	status, err := strconv.Atoi(said[0])
	if err != nil || status < 200 || status > 599 {
		return nil
	}
	head := &failure.Head{Status: status, Header: http.Header{}}
	for name, values := range trailer {
		for _, value := range values {
			add(head, name, value)
		}
	}
	return head
}

// add adds a header to a head, unless it is the connection's, gRPC's or ours: pipeline/answer_head.py refuses the same ones.
func add(head *failure.Head, name, value string) {
	if !isReserved(name) {
		head.Header.Add(name, value)
	}
}

var reserved = map[string]bool{
	"connection": true, "keep-alive": true, "proxy-authenticate": true, "proxy-authorization": true, "proxy-connection": true,
	"te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "content-encoding": true, "content-length": true,
	"content-type": true, "date": true, "host": true, "server": true, "status": true,
}

var reservedPrefixes = []string{"access-control-", "grpc-", "pipeline-", "x-pipeline-"}

func isReserved(name string) bool {
	if reserved[name] || strings.HasSuffix(name, "-bin") {
		return true
	}
	for _, prefix := range reservedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
