package edge

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// route is who answers a request.
type route int

const (
	routePassthrough route = iota // the HTTP port of a backend
	routeInference                // POST /<name>/<method>
	routeHealth                   // /health/<probe>, /health, /healthz
	routeMetrics                  // /metrics
	routeNowhere                  // no HTTP request that anybody could answer
)

// String returns the label of the metrics.
func (r route) String() string {
	return [...]string{"passthrough", "inference", "health", "metrics", "nowhere"}[r]
}

// apiSites are first parts of paths that are not names of services.
var apiSites = map[string]bool{"": true, "v2": true, "api": true, "v1": true}

// plainMethods are the methods that the gateway answers itself; the server's parser knows the others.
var plainMethods = map[string]bool{
	http.MethodPost: true, http.MethodGet: true, http.MethodHead: true, http.MethodPut: true,
	http.MethodPatch: true, http.MethodDelete: true, http.MethodOptions: true, http.MethodTrace: true,
}

// routeOf finds who answers a request and, for routeInference and routeHealth, the two parts of its
// path. The rules are the door's: three parts of the decoded path, the first of them a service's.
func routeOf(r *http.Request, hasDoor bool) (found route, name, method string) {
	if r.Method == http.MethodConnect || r.Method == "PRI" || whyNoHTTP2(r) != "" {
		return routeNowhere, "", ""
	}
	path, ok := pathOf(r.URL)
	if !ok || !isASCII(r.RequestURI) || (hasDoor && !plainMethods[r.Method]) {
		return routePassthrough, "", ""
	}
	if path == "/metrics" || path == "/metrics/" {
		return routeMetrics, "", ""
	}
	if path == "/health" || path == "/healthz" { // as benchmarks and load balancers ask
		return routeHealth, "health", "ready"
	}
	rest, isRooted := strings.CutPrefix(path, "/")
	name, method, isDeep := strings.Cut(rest, "/")
	if !isRooted || !isDeep || apiSites[name] || method == "" || strings.Contains(method, "/") {
		return routePassthrough, "", ""
	}
	if name == "health" {
		return routeHealth, name, method
	}
	return routeInference, name, method
}

// pathOf returns the decoded path; ok is false if that is not a text; the server decodes such a path in its
// own way.
func pathOf(address *url.URL) (path string, ok bool) {
	path = address.Path
	if address.RawPath != "" {
		if raw, _, hasFragment := strings.Cut(address.RawPath, "#"); hasFragment {
			decoded, err := url.PathUnescape(raw)
			if err != nil {
				return "", false
			}
			path = decoded
		}
	}
	return path, utf8.ValidString(path)
}

// rawTarget returns the request's path, as it came, for a request to a backend.
func rawTarget(r *http.Request) string {
	raw, _, _ := strings.Cut(r.RequestURI, "?")
	if raw != "*" && !strings.HasPrefix(raw, "/") { // the absolute form, or a request of a test's
		raw = r.URL.EscapedPath()
	}
	switch {
	case raw == "":
		return "/"
	case strings.HasPrefix(raw, "//"): // alone it would be read as a host
		return "http://" + r.Host + raw
	}
	return raw
}

func isASCII(text string) bool {
	for at := range len(text) {
		if text[at] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// whyNoHTTP2 returns what is wrong with an HTTP/2 request that cannot be written as one of HTTP/1.1, which
// backends are sent: frames may hold blanks and more, where a line would end too early. "": nothing.
func whyNoHTTP2(r *http.Request) string {
	switch {
	case r.ProtoMajor < 2:
		return "" // of whose lines it was made
	case !isVisible(r.RequestURI):
		return "its :path has bytes other than visible ASCII: write them as %XX"
	case !isToken(r.Method):
		return "its :method is not a token"
	case !isHost(r.Host):
		return "its :authority is not a host"
	}
	return ""
}

// isVisible says whether a text is ASCII without blanks and control characters.
func isVisible(text string) bool {
	for at := range len(text) {
		if text[at] <= ' ' || text[at] > '~' {
			return false
		}
	}
	return true
}

// isToken says whether a text is one of HTTP's.
func isToken(text string) bool {
	return text != "" && strings.Trim(text, tokenChars) == ""
}

const tokenChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"

// isHost says whether a text may be a host and a port; what they mean is for the backend to say.
func isHost(text string) bool {
	return isVisible(text) && !strings.ContainsAny(text, `/?#@\"<>`)
}
