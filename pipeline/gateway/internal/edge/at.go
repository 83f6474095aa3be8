package edge

import (
	"fmt"
	"net/http"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/failure"
)

// At returns the handler of a port.
func (g *Handler) At(side access.Side) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, side) })
}

// roleOf returns what the caller of a request needs.
func (x *exchange) roleOf() access.Role {
	return access.OfRequest(x.request.Method, targetOf(x.request), x.route == routeInference)
}

// refuseElsewhere answers what is there on another port.
func (x *exchange) refuseElsewhere() {
	path, _ := pathOf(x.request.URL)
	refused := &failure.Error{Status: http.StatusNotFound, ErrNo: failure.CodeNoService, Text: fmt.Sprintf("no such path here: %s", path)}
	x.body = bodyFor(rawTarget(x.request), refused)
	x.refuseEarly(refused)
}
