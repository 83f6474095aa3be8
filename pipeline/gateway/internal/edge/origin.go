package edge

import (
	"fmt"
	"net/http"
	"strings"

	"pipeline/gateway/internal/failure"
)

const mostShownPage = 100

// simpleTypes are the content types that a browser lets any web page send without asking the server. With
// JSON it asks first, and the server refuses.
var simpleTypes = map[string]bool{
	"": true, "text/plain": true, "application/x-www-form-urlencoded": true, "multipart/form-data": true,
}

// foreignPage returns the origin of a request that a web page from elsewhere has a browser send; "": it is
// not such a request. Programs send no Origin. The server decides which other hosts are known.
func foreignPage(r *http.Request) string {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return ""
	}
	kinds := append([]string{""}, r.Header["Content-Type"]...)
	kind, _, _ := strings.Cut(kinds[len(kinds)-1], ";") // the last one counts, as to the server
	if !simpleTypes[strings.ToLower(strings.TrimSpace(kind))] {
		return ""
	}
	page := strings.ToLower(origins[len(origins)-1])
	scheme, host, _ := strings.Cut(page, "://")
	usual := map[string]string{"http": ":80", "https": ":443"}[scheme]
	own := strings.ToLower(r.Host)
	if host != "" && strings.TrimSuffix(host, usual) == strings.TrimSuffix(own, usual) {
		return ""
	}
	return page + " " // also of an Origin that is empty
}

// notFromPage answers it where there is no server to ask.
func notFromPage(page string) *failure.Error {
	page = strings.TrimSuffix(page, " ")
	text := fmt.Sprintf("a web page from '%s' may not ask this server: send content-type: application/json "+
		"from a page of this server's own", page[:min(len(page), mostShownPage)])
	return &failure.Error{Status: http.StatusForbidden, ErrNo: failure.CodeNoService, Text: text}
}
