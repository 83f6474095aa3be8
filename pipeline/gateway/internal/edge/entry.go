package edge

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"pipeline/gateway/internal/accesslog"
)

// entry returns what the access log says of an exchange that is over.
func (x *exchange) entry(took time.Duration) *accesslog.Entry {
	r := x.request
	return &accesslog.Entry{
		Address: x.caller, Action: r.Method + " " + loggedPath(r) + " " + r.Proto, Status: strconv.Itoa(x.status), Bytes: x.sent, Took: took,
		Backend: x.backend, Trace: x.Trace(), Caller: x.grant.Name(),
	}
}

// mostLoggedBytes of a path are written.
const mostLoggedBytes = 1024

// loggedPath returns the path without its query, which may hold secrets.
func loggedPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if !strings.HasPrefix(path, "/") && path != "*" { // with a host, and perhaps a password
		path = r.URL.EscapedPath()
	}
	if len(path) > mostLoggedBytes {
		path = path[:mostLoggedBytes] + "..."
	}
	return path
}
