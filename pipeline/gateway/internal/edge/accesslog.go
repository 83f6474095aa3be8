package edge

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// accessLog writes a line for every n-th request.
type accessLog struct {
	log   *slog.Logger
	every uint64 // 0: for none
	seen  atomic.Uint64
}

func (a *accessLog) answered(x *exchange, took time.Duration) {
	if a.every == 0 || a.seen.Add(1)%a.every != 0 {
		return
	}
	backend := x.backend
	if backend == "" {
		backend = "-"
	}
	r := x.request
	a.log.Info(fmt.Sprintf("%s %q %d %dB %.2fms %s", x.caller, r.Method+" "+loggedPath(r)+" "+r.Proto,
		x.status, x.sent, float64(took)/float64(time.Millisecond), backend))
}

// mostLoggedBytes of a path are written.
const mostLoggedBytes = 1024

// loggedPath returns the path as it came. A query may hold what is nobody's to read.
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
