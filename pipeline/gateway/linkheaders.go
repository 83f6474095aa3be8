package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"net/http/httputil"
	"slices"

	"golang.org/x/net/http/httpguts"
)

// ofConnections are headers that say nothing about a request.
var ofConnections = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// headerField returns the headers of a request as an ASK has them, for a server that forwards some to its
// hooks: u16 size of what follows, and of each its name, a line's end, its value, a line's end. They are those
// that the server's HTTP port would be told; which of them hooks see is the server's to choose. Its error is a
// *refusal.
func headerField(asking *call) ([]byte, error) {
	field := make([]byte, 2, 1<<10)
	for name, values := range headersToTell(asking) {
		for _, value := range values {
			field = append(append(append(append(field, name...), '\n'), value...), '\n')
		}
	}
	size := len(field) - 2
	if size > mostFieldBytes {
		text := fmt.Sprintf("the request's headers have %d bytes, and a link takes %d", size, mostFieldBytes)
		return nil, &refusal{status: http.StatusRequestHeaderFieldsTooLarge, code: codePackage, text: text}
	}
	binary.BigEndian.PutUint16(field, uint16(size))
	return field, nil
}

func headersToTell(asking *call) http.Header {
	if asking == nil { // nobody's request
		return nil
	}
	in := asking.exchange.request
	told := maps.Clone(in.Header)
	for name := range told {
		if slices.Contains(ofConnections, name) || httpguts.HeaderValuesContainsToken(in.Header["Connection"], name) {
			delete(told, name)
		}
	}
	sayWhoAsks(&httputil.ProxyRequest{In: in, Out: &http.Request{Header: told}}, asking.exchange.cfg)
	told["Host"] = []string{in.Host}
	return told
}
