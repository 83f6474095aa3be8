// Package edge serves HTTP: it answers some paths itself, and routes the others to backends.
package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/accesslog"
	"pipeline/gateway/internal/codec"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/deadline"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/tracing"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

// Handler answers HTTP requests.
type Handler struct {
	cfg      config.Config
	log      *slog.Logger
	Pool     *upstream.Pool
	stats    *metrics.Stats
	access   *accesslog.Log
	tracing  *tracing.Beginner
	Budget   *memory.Budget
	mux      *runtime.ServeMux // of the generated code
	web      *passthrough
	standard deadline.Deadline // of a request that says none
	Draining atomic.Bool
	gate     *access.Gate // nil: everybody may come in

	client    *balancer
	marshaler *marshaler
	left      leftHeads
	routes    [routeNowhere + 1]*metrics.Route
}

// NewHandler puts the parts together. The pool is the caller's, to start and to close.
func NewHandler(cfg config.Config, log *slog.Logger, backends *upstream.Pool, stats *metrics.Stats, gate *access.Gate) (*Handler, error) {
	g := &Handler{
		cfg:      cfg,
		log:      log,
		Pool:     backends,
		stats:    stats,
		access:   accesslog.New(log, cfg.AccessLogSample, cfg.LogFormat == config.JSONLog),
		tracing:  tracing.New(cfg.TracesPerS),
		Budget:   memory.NewBudget(cfg.MaxBufferedBytes),
		web:      newPassthrough(backends, log),
		standard: deadline.Standard(cfg.Timeout),
		gate:     gate,

		client:    &balancer{pool: backends, cfg: cfg},
		marshaler: newMarshaler(cfg.MaxJSONBytes),
	}
	for each := range g.routes {
		g.routes[each] = stats.Route(route(each).String())
	}
	g.mux = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, g.marshaler),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithWriteContentLength(),
		runtime.WithErrorHandler(noteFailure),
		runtime.WithRoutingErrorHandler(noteLostRoute),
	)
	stats.Watch(g.Budget.Held.Load)
	return g, pipelinepb.RegisterPipelineServiceHandlerClient(context.Background(), g.mux, g.client)
}

// ServeHTTP answers one request, of a port that is for all.
func (g *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.serve(w, r, access.AllSides) }

func (g *Handler) serve(w http.ResponseWriter, r *http.Request, side access.Side) {
	found, name, method := routeOf(r, !g.web.isUnknown())
	x := &exchange{ResponseWriter: w, cfg: &g.cfg, draining: &g.Draining, request: r, started: time.Now(), route: found}
	x.share.Of = g.Budget
	g.stats.InFlight.Inc()
	defer g.answered(x)
	if x.unsafe = unsafeHead(r); x.unsafe != "" {
		x.route = routeNowhere
	}
	if r.ContentLength != 0 {
		x.pace = newPace(x)
		r.Body = x.pace
	}
	x.caller, x.from = origin(r, &g.cfg.Trust)
	if x.route != routeNowhere && !g.isToGoOn(x, side) {
		return
	}
	switch x.route {
	case routeHealth:
		g.health(x, method)
	case routeMetrics:
		g.metrics(x)
	case routeNowhere:
		g.refuseNowhere(x)
	default:
		if err := x.share.Need(memory.RequestBytes); err != nil {
			x.refuseFault(err) // which it is
			return
		}
		if found == routeInference {
			g.infer(x, name, method)
			return
		}
		g.forward(x)
	}
}

// isToGoOn says whether a request is to be answered by who its route says; else it was answered.
func (g *Handler) isToGoOn(x *exchange, side access.Side) bool {
	if x.letPageIn() {
		return false
	}
	if side == access.PublicSide && !side.Has(x.roleOf()) {
		x.refuseElsewhere()
		return false
	}
	if g.gate != nil && !g.letIn(x) {
		return false
	}
	dropForbidden(x.request.Header, &g.cfg.Trust)
	g.beginTrace(x.request.Header)
	return true
}

// beginTrace begins a trace where a request belongs to none.
func (g *Handler) beginTrace(header http.Header) {
	if g.tracing == nil {
		return
	}
	given := ""
	if said := header[traceHeader]; len(said) > 0 {
		given = said[len(said)-1]
	}
	header[traceHeader] = []string{g.tracing.Begin(given)}
}

// answered counts an exchange that is over, also one that was broken off by a panic.
func (g *Handler) answered(x *exchange) {
	x.pace.leave()
	x.lastWords()
	x.share.End()
	x.grant.Done()
	g.stats.InFlight.Dec()
	if x.status == 0 {
		x.status = statusCallerLeft
	}
	took := time.Since(x.started)
	g.routes[x.route].Answered(x.status, x.sent, took)
	if g.access.Wants() {
		g.access.Write(x.entry(took))
	}
}

func (g *Handler) refuseNowhere(x *exchange) {
	if x.request.Method == http.MethodConnect {
		text := "method CONNECT: this is not a proxy"
		x.refuse(&failure.Error{Status: http.StatusMethodNotAllowed, ErrNo: failure.CodePackage, Text: text, MustClose: true})
		return
	}
	if x.unsafe != "" {
		x.refuseEarly(notHTTP(x.unsafe))
		return
	}
	if reason := whyNoHTTP2(x.request); reason != "" {
		x.refuse(badRequest("this is not a valid HTTP/2 request: %s", reason))
		return
	}
	x.refuse(notHTTP("HTTP/2 is not spoken here"))
}

// health answers /health/live and /health/ready.
func (g *Handler) health(x *exchange, probe string) {
	switch method := x.request.Method; {
	case probe != "live" && probe != "ready":
		text := "no such path; GET /health/live or /health/ready"
		x.refuseEarly(&failure.Error{Status: http.StatusNotFound, ErrNo: failure.CodeNoService, Text: text})
	case method != http.MethodGet && method != http.MethodHead:
		x.refuseEarly(notAllowed(method, "GET, HEAD"))
	case probe == "live" || (g.Pool.IsReady() && !g.Draining.Load()):
		x.json(http.StatusOK, []byte(`{"status":"ok"}`))
	default:
		x.json(http.StatusServiceUnavailable, []byte(`{"status":"not ready"}`))
	}
}

// metrics answers /metrics.
func (g *Handler) metrics(x *exchange) {
	if method := x.request.Method; method != http.MethodGet && method != http.MethodHead {
		x.refuseEarly(notAllowed(method, "GET, HEAD"))
		return
	}
	x.hasArrived()
	x.Header().Set("Cache-Control", "no-store")
	g.stats.Handler().ServeHTTP(x, &http.Request{Method: http.MethodGet, URL: &url.URL{}})
	if g.cfg.BackendMetrics && x.request.Method == http.MethodGet {
		if err := g.web.copyMetrics(x.request.Context(), x); err != nil {
			g.log.Warn(fmt.Sprintf("a backend's metrics are not there: %v", err))
		}
	}
}

// infer answers POST /<name>/<method>: it reads the body, and asks a backend: by the generated code, or directly.
func (g *Handler) infer(x *exchange, name, method string) {
	r := x.request
	if r.Method != http.MethodPost {
		x.refuseEarly(notAllowed(r.Method, http.MethodPost))
		return
	}
	if mayWantParts(r.Header) {
		g.inferInParts(x)
		return
	}
	if page := foreignPage(r); page != "" {
		g.leaveToFallback(x, &fallback{"origin", notFromPage(page)})
		return
	}
	limit, ok := deadline.Of(r.Header, g.standard)
	if !ok {
		text := "invalid Grpc-Timeout: send at most 8 digits and one of H M S m u n"
		g.leaveToFallback(x, &fallback{"timeout", badRequest("%s", text)})
		return
	}
	candidates := g.Pool.Candidates.Load()
	if size := metadataBytes(r.Header, candidates.WantHeaders); size > MaxMetadataBytes && g.hasFallback() {
		g.leaveToFallback(x, &fallback{"metadata", tooMuchMetadata(size)})
		return
	}
	asked := &call{exchange: x, deadline: limit}
	if err := g.read(asked); err != nil {
		g.end(asked, err)
		return
	}
	if candidates.AllLocal {
		g.end(asked, g.direct(asked, name, method, candidates.AllTakeJSON))
		return
	}
	g.mux.ServeHTTP(g.writerFor(x), asRequest(asked, name, method))
	g.end(asked, asked.failed)
}

// read takes the body of a call and unpacks it, if there is room for what it says.
func (g *Handler) read(asked *call) (err error) {
	x := asked.exchange
	most := g.cfg.JSONLimit()
	if asked.original, err = x.readBody(most); err != nil {
		return err
	}
	g.stats.Received.Add(float64(len(asked.original)))
	asked.plain = asked.original
	if encoding := encodingOf(x.request.Header); encoding != "" {
		if asked.plain, err = x.unpack(encoding, asked.original, most); err != nil {
			return err
		}
	}
	asked.weight = codec.WeightOf(asked.plain)
	return x.share.Need(asked.weight)
}

// end answers a call that failed, and frees what it held.
func (g *Handler) end(asked *call, err error) {
	x := asked.exchange
	var judge *fallback
	switch {
	case err == nil:
	case asked.fallback != nil:
		g.fallBack(asked, asked.fallback)
		return // its body may be read for longer than this request takes
	case errors.As(err, &judge):
		g.fallBack(asked, judge)
		return
	case x.refuseFault(err), x.request.Context().Err() != nil:
	default:
		g.log.Error(fmt.Sprintf("%s failed: %v", x.request.URL.Path, err))
		x.refuse(&failure.Error{Status: http.StatusInternalServerError, ErrNo: failure.CodeUnknown, Text: "internal error of the gateway"})
	}
	asked.forget()
}

// writerFor returns where the generated code writes the answer to.
func (g *Handler) writerFor(x *exchange) http.ResponseWriter {
	if g.cfg.GzipMinBytes == 0 {
		return x
	}
	x.Header().Add("Vary", "Accept-Encoding")
	if !acceptsGzip(x.request.Header) {
		return x
	}
	return &zipping{x, g.cfg.GzipMinBytes}
}

// asRequest returns what the generated code is given: the path and the body. The headers are ours
// to read, see `outgoing`: the runtime would have its own ideas of them.
func asRequest(asked *call, name, method string) *http.Request {
	bare := http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: "/" + name + "/" + method},
		Header: http.Header{},
		Body:   asked,
	}
	return bare.WithContext(withCall(asked.exchange.request.Context(), asked))
}

// noteFailure keeps the error of the generated code for `end`.
func noteFailure(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, _ http.ResponseWriter, _ *http.Request, err error) {
	callOf(ctx).failed = err
}

// noteLostRoute is for paths that the generated code does not know, of which it is asked none.
func noteLostRoute(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, _ http.ResponseWriter, r *http.Request, _ int) {
	callOf(ctx).failed = errors.New("the generated code has no route for " + r.Method + " " + r.URL.Path)
}
