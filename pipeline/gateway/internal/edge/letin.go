package edge

import (
	"encoding/json"
	"net/http"
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

// bodyFor returns a refusal as the protocol of a path has it; nil: as ours.
func bodyFor(path string, refused *failure.Error) []byte {
	var said any
	switch {
	case strings.HasPrefix(path, "/v2"):
		said = map[string]string{"error": refused.Text}
	case strings.HasPrefix(path, "/v1/"):
		said = map[string]any{"error": map[string]any{"message": refused.Text, "type": "invalid_request_error", "code": refused.ErrNo}}
	default:
		return nil
	}
	data, _ := json.Marshal(said) // texts and numbers: it cannot fail
	return data
}
