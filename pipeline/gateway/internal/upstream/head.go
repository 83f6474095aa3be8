package upstream

import (
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/reserved"
)

// statusKey names the trailing metadata in which a pipeline server says the HTTP status that user code gave
// an answer; its
// headers are beside it.
const statusKey = "pipeline-status"

// Reply is the answer to a call, in a buffer that may be released, and what user code says of its head.
type Reply struct {
	Data []byte
	Head *failure.Head // nil: nothing
	Long *link.Answer  // to a POST: has the data, and is to be released; nil: no POST
}

// headOfPOST returns the head of the answer to a POST.
func headOfPOST(status int, fields iter.Seq2[string, string]) *failure.Head {
	head := &failure.Head{Status: status, Header: http.Header{}}
	for name, value := range fields {
		head.Header.Add(name, value)
	}
	return head
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

// headOfTrailer returns the head from a server elsewhere; nil: no head, as from all servers but pipelines.
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

// add adds a header to a head, unless it is the connection's, gRPC's or ours: pipeline/answer_head.py
// refuses the same ones.
func add(head *failure.Head, name, value string) {
	if !isReserved(name) {
		head.Header.Add(name, value)
	}
}

// isReserved says whether user code may not say a header of an answer.
func isReserved(name string) bool {
	switch reserved.Of(name) {
	case reserved.Connection, reserved.Message, reserved.Gateway:
		return true
	}
	return slices.Contains(ofAnswers, name) || strings.HasPrefix(name, "access-control-") || strings.HasSuffix(name, "-bin")
}

// ofAnswers are those of answers that the door says itself.
var ofAnswers = []string{"content-encoding", "date", "server", "status"}
