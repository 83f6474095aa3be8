package edge

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// methodsOfPages are what pages may ask with: what changes models is not for them.
const methodsOfPages = "GET, HEAD, POST"

// shownToPages are headers of answers that scripts may read, besides the ones that they always may.
const shownToPages = "Inference-Header-Content-Length, Retry-After"

// letPageIn says to the browser of a page from elsewhere what that may do; true: it had only asked for that.
func (x *exchange) letPageIn() (isAnswered bool) {
	rules := &x.cfg.CORS
	if !rules.IsOn() {
		return false
	}
	header, asked := x.Header(), x.request.Header
	if rules.Varies() {
		header.Add("Vary", "Origin") // also for who says none: a cache must not give its answer to a page
	}
	origins := asked["Origin"]
	if len(origins) != 1 || !rules.Allows(origins[0]) {
		return false
	}
	header.Set("Access-Control-Allow-Origin", "*")
	if rules.Varies() {
		header.Set("Access-Control-Allow-Origin", origins[0])
	}
	if rules.Credentials {
		header.Set("Access-Control-Allow-Credentials", "true")
	}
	if x.request.Method == http.MethodOptions && len(asked["Access-Control-Request-Method"]) > 0 {
		x.answerPreflight(asked)
		return true
	}
	header.Set("Access-Control-Expose-Headers", shownToPages)
	delete(asked, "Origin") // it was judged: a server would judge it again, and knows no list
	return false
}

// answerPreflight answers what a browser asks before it lets a page ask.
func (x *exchange) answerPreflight(asked http.Header) {
	header := x.Header()
	header.Set("Access-Control-Allow-Methods", methodsOfPages)
	var allowed []string
	for name := range strings.SplitSeq(strings.Join(asked["Access-Control-Request-Headers"], ","), ",") {
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" && x.cfg.CORS.AllowsHeader(name) {
			allowed = append(allowed, name)
		}
	}
	if len(allowed) > 0 {
		header.Set("Access-Control-Allow-Headers", strings.Join(allowed, ", "))
	}
	header.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	header.Set("Access-Control-Max-Age", strconv.Itoa(int(x.cfg.CORS.MaxAge/time.Second)))
	x.hasArrived()
	x.WriteHeader(http.StatusOK)
}
