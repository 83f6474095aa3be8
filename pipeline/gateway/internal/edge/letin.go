package edge

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/failure"
)

// letIn asks whether a request may come in; until its grant is done it counts as its caller's. Else it is
// refused.
func (g *Handler) letIn(x *exchange) (isIn bool) {
	r := x.request
	asked := &access.Asked{
		Role:    x.roleOf(),
		Action:  r.Method + " " + r.URL.Path,
		Address: x.from,
		Bytes:   r.ContentLength,
		Tokens:  access.TokensOf(func(name string) []string { return r.Header.Values(name) }),
	}
	if r.TLS != nil {
		asked.Certificates = r.TLS.PeerCertificates
	}
	grant, refused := g.gate.Let(r.Context(), asked)
	if refused != nil {
		if refused.Status == http.StatusUnauthorized {
			x.Header().Set("WWW-Authenticate", "Bearer")
		}
		x.body = bodyFor(rawTarget(r), refused)
		x.refuseEarly(refused)
		return false
	}
	x.grant, x.share.Own = grant, grant.Budget()
	dropCredentials(r.Header, &g.cfg.Trust)
	return true
}

// targetOf returns the request's path as it came: what a backend makes of it.
func targetOf(r *http.Request) string {
	if r.RequestURI != "" && strings.HasPrefix(r.RequestURI, "/") {
		return r.RequestURI
	}
	return "" // the absolute form: for callers that may do anything
}

// isOpenAI says whether a path is one of OpenAI's API, whose clients read all errors in its form.
func isOpenAI(path string) bool { return strings.HasPrefix(path, "/v1/") }

// longestRetry is the longest Retry-After, in seconds, that clients of OpenAI's API obey.
const longestRetry = 60

// bodyFor returns a refusal as the protocol of a path has it; nil: as ours.
func bodyFor(path string, refused *failure.Error) []byte {
	var said any
	switch {
	case strings.HasPrefix(path, "/v2"):
		said = map[string]string{"error": refused.Text}
	case isOpenAI(path):
		kind := "invalid_request_error"
		if refused.Status >= http.StatusInternalServerError {
			kind = "server_error"
		} else if refused.Status == http.StatusTooManyRequests {
			kind = "rate_limit_error"
		}
		said = map[string]any{"type": "error", "error": map[string]any{"message": refused.Text, "type": kind, "param": nil, "code": strconv.Itoa(int(refused.ErrNo))}}
	default:
		return nil
	}
	data, _ := json.Marshal(said) // texts and numbers: it cannot fail
	return data
}
