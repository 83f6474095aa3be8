package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/logging"
	"pipeline/gateway/internal/reserved"
	"pipeline/gateway/internal/sequence"
	"pipeline/gateway/internal/upstream"
)

const (
	copyBytes      = 32 << 10
	metricsTimeout = 5 * time.Second
	wholeBytes     = 64 << 10                          // a body up to here is read before it is passed on
	jsonLength     = "Inference-Header-Content-Length" // of a body of Triton's protocol that has tensors behind its JSON
	webHost        = "backend"                         // of URLs: the transport of a backend has one place to dial
)

// passthrough sends requests to the HTTP port of a backend, as they came.
type passthrough struct {
	pool  *upstream.Pool
	log   *slog.Logger
	proxy *httputil.ReverseProxy
}

func newPassthrough(backends *upstream.Pool, log *slog.Logger) *passthrough {
	p := &passthrough{pool: backends, log: log}
	p.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      p,
		FlushInterval:  -1, // at once: an answer may be a stream
		ErrorLog:       logging.Standard(log),
		BufferPool:     copyBuffers{},
		ModifyResponse: begin,
		ErrorHandler:   p.fail,
	}
	return p
}

// forward sends a request on. A small body is read first: while it is on its way a backend may
// answer, and what it did not take would be left on the caller's connection.
func (p *passthrough) forward(x *exchange) {
	r := x.request
	switch {
	case p.isUnknown():
		x.refuseEarly(noSuchPath(r))
	case r.ContentLength == 0:
		x.hasArrived()
		p.serve(x, r)
	case r.ContentLength > 0 && r.ContentLength <= min(wholeBytes, x.cfg.MaxMessageBytes) && r.Header.Get("Expect") == "":
		body, err := x.readBody(x.cfg.MessageLimit())
		if err != nil {
			x.refuseFault(err) // which it is
			return
		}
		p.serve(x, withBody(r, body))
	default:
		p.pour(x)
	}
}

// pour sends a request on whose body goes as it comes.
func (p *passthrough) pour(x *exchange) {
	x.stream = newStream(x)
	streamed := *x.request
	streamed.Body = x.stream
	p.serve(x, &streamed)
	if x.mustLinger {
		x.linger()
	}
}

// serve sends a request on, and its answer back if that begins in time.
func (p *passthrough) serve(x *exchange, r *http.Request) {
	ctx, breakOff := context.WithCancel(withExchange(r.Context(), x))
	defer breakOff()
	if limit, isLimited := x.timeToBegin(); isLimited {
		go x.awaitHead(ctx, limit, breakOff)
	}
	r.Header.Del("Upgrade") // no backend speaks anything else; the proxy would refuse an invalid name
	p.proxy.ServeHTTP(x, r.WithContext(ctx))
}

// isUnknown says whether no backend's HTTP port is known.
func (p *passthrough) isUnknown() bool { return !p.pool.Candidates.Load().HasWeb }

// noSuchPath answers what only an HTTP port has, or could judge.
func noSuchPath(r *http.Request) *failure.Error {
	if !isASCII(r.RequestURI) {
		return badRequest("the request's path or query has bytes that are not ASCII: write them as %%XX")
	}
	path, _ := pathOf(r.URL)
	text := fmt.Sprintf("no such path: %s; POST /<name>/<method>. "+
		"For other paths the gateway needs a backend's HTTP port: --backend host:rpc_port/http_port", path)
	return &failure.Error{Status: http.StatusNotFound, ErrNo: failure.CodeNoService, Text: text}
}

// rewrite makes the request to the backend of the caller's: host, path, query and body stay.
func rewrite(request *httputil.ProxyRequest) {
	in, out := request.In, request.Out
	out.URL = &url.URL{
		Scheme:     "http", // RoundTrip knows better
		Host:       webHost,
		Opaque:     rawTarget(in),
		RawQuery:   in.URL.RawQuery,
		ForceQuery: in.URL.ForceQuery,
	}
	out.Header.Del("Connection")
	if in.GetBody != nil { // the body is here: nobody has to be asked whether to send it
		out.Header.Del("Expect")
	}
	out.Trailer = nil // headers behind the body, which no backend reads
	exchangeOf(in.Context()).sayWhoAsks(request)
	if in.Header.Get("User-Agent") == "" {
		out.Header["User-Agent"] = nil // else Go adds its own
	}
}

// sayWhoAsks tells the backend the caller and the origin of a request. It writes last: a caller may have had
// headers dropped as its connection's. The gateway believes claims about others only from proxies that it is
// configured to trust.
func (x *exchange) sayWhoAsks(request *httputil.ProxyRequest) {
	in, out := request.In, request.Out
	for name := range out.Header {
		if reserved.Of(strings.ToLower(name)) == reserved.Proxies || reserved.IsGateways(name) {
			delete(out.Header, name)
		}
	}
	if name := x.grant.Name(); name != "" {
		out.Header[access.CallerHeader] = []string{name}
	}
	if trace := in.Header[traceHeader]; trace != nil { // which the gateway may have begun
		out.Header[traceHeader] = trace
	}
	isTrusted := x.cfg.Trust.Proxy(in.RemoteAddr)
	if isTrusted {
		out.Header["X-Forwarded-For"] = in.Header["X-Forwarded-For"]
	}
	request.SetXForwarded()
	if !isTrusted {
		return
	}
	for name, values := range in.Header {
		if name != "X-Forwarded-For" && reserved.Of(strings.ToLower(name)) == reserved.Proxies {
			out.Header[name] = values
		}
	}
}

// RoundTrip asks one backend, and another one if that could not be reached.
func (p *passthrough) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	x := exchangeOf(r.Context())
	want := &upstream.Want{Work: upstream.WebRequests, IsSafe: mayComeTwice(r)}
	if x.isOurs() {
		want.Work = upstream.Scrapes
	} else if p.pool.IsSticky() {
		want.Step = stepOf(x.request, r)
	}
	response, err := upstream.Ask(r.Context(), p.pool, want, func(_ context.Context, chosen *upstream.Attempt) (*http.Response, error) {
		x.backend = chosen.Name
		return askWeb(chosen, attempt(r, chosen.Backend))
	})
	return response, err
}

// stepOf is stepOfBody for a request whose body may be here.
func stepOf(in, r *http.Request) *sequence.Step {
	var body []byte
	if r.GetBody != nil && r.ContentLength <= wholeBytes {
		if again, err := r.GetBody(); err == nil {
			body, _ = io.ReadAll(again)
		}
	}
	return stepOfBody(in, body)
}

// mayComeTwice says whether a request may be sent again that a backend may have seen.
func mayComeTwice(r *http.Request) bool {
	isWhole := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	return isWhole && (r.Method == http.MethodGet || r.Method == http.MethodHead || isIdempotent(r.Header))
}

// askWeb asks the HTTP port of a backend. The request is over when its answer's body is closed.
func askWeb(chosen *upstream.Attempt, r *http.Request) (*http.Response, error) {
	ctx, breakOff := context.WithCancel(r.Context())
	stop := context.AfterFunc(chosen.Gone(), breakOff)
	response, err := chosen.Web.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		breakOff()
		if exchangeOf(r.Context()).head.Load() == headLate {
			chosen.Keep()(upstream.Bad)
		}
		return nil, faultOfWeb(chosen, r, err)
	}
	end, outcome := chosen.Keep(), outcomeOf(r, response)
	response.Body = &countedBody{response.Body, sync.OnceFunc(func() {
		stop()
		breakOff()
		end(outcome)
	})}
	return response, nil
}

// faultOfWeb says why there is no answer: a request that did not leave, a backend that is gone, or the
// caller's own.
func faultOfWeb(chosen *upstream.Attempt, r *http.Request, err error) error {
	x := exchangeOf(r.Context())
	var network *net.OpError
	switch {
	case errors.As(err, &network) && network.Op == "dial":
		return upstream.ErrNeverLeft
	case r.Context().Err() != nil || (x.stream != nil && x.stream.fault() != nil):
		return err
	}
	return failure.Unavailable(fmt.Sprintf("the HTTP port of backend %s failed: %v", chosen.Name, err))
}

// outcomeOf returns what an answer tells about its backend. GET may ask for the health of a server that is
// not healthy.
func outcomeOf(r *http.Request, response *http.Response) upstream.Outcome {
	if response.StatusCode >= http.StatusInternalServerError && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return upstream.Neither
	}
	return upstream.OutcomeOfAnswer(response.StatusCode, response.Header)
}

// countedBody is an answer's body whose end is the request's.
type countedBody struct {
	io.ReadCloser
	end func()
}

// Close ends it.
func (b *countedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// attempt returns the request for one backend, whose failure leaves the body for the next.
func attempt(r *http.Request, chosen *upstream.Backend) *http.Request {
	own := *r
	if chosen.Web.TLSClientConfig != nil {
		address := *r.URL
		address.Scheme = "https"
		own.URL = &address
	}
	switch {
	case r.Body == nil || r.Body == http.NoBody:
	case r.GetBody != nil: // of what is seen to be in memory, head and body are one packet
		own.Body, _ = r.GetBody()
	default:
		own.Body = io.NopCloser(r.Body)
	}
	return &own
}

// begin receives the head of an answer.
func begin(response *http.Response) error {
	x := exchangeOf(response.Request.Context())
	if !x.head.CompareAndSwap(headAwaited, headCame) {
		return context.DeadlineExceeded
	}
	x.closeIfNeeded(response)
	return nil
}

// closeIfNeeded ends the connection of a caller that still sends what got its answer, and of
// one whom the door will not hear any more. A connection of HTTP/2 has other streams: it continues.
func (x *exchange) closeIfNeeded(response *http.Response) {
	if x.request.ProtoMajor != 1 {
		return
	}
	if response.Close && response.StatusCode >= http.StatusBadRequest {
		response.Header.Set("Connection", "close")
	}
	if x.stream == nil || x.stream.hasEnded(UnwantedWait) {
		return
	}
	_ = x.control().EnableFullDuplex() // else the server would wait for the body first
	response.Header.Set("Connection", "close")
	x.mustLinger = true
}

// fail answers a request that got no answer from a backend.
func (p *passthrough) fail(_ http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	if x.stream != nil {
		if fault := x.stream.fault(); fault != nil {
			err = x.bodyFault(fault)
		}
	}
	var answer *failure.Error
	switch {
	case errors.As(err, &answer):
	case errors.Is(err, errCallerLeft), x.request.Context().Err() != nil:
		return
	case x.head.Load() == headLate:
		answer = tooLate(x.backend)
	default:
		answer = failure.Unavailable(err.Error())
	}
	if x.stream != nil {
		x.refuseEarly(answer)
		return
	}
	x.refuse(answer)
}

// copyMetrics writes the metrics of a backend behind ours.
func (p *passthrough) copyMetrics(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(withExchange(ctx, &exchange{}), metricsTimeout) // an exchange without a caller
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+webHost+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := p.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	isText := strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain")
	if response.StatusCode != http.StatusOK || !isText {
		return fmt.Errorf("GET /metrics was answered with %s", response.Status)
	}
	_, err = io.Copy(w, response.Body)
	return err
}

// copyBuffers are for the bodies of answers.
type copyBuffers struct{}

var copyPool = sync.Pool{New: func() any { return new([copyBytes]byte) }}

func (copyBuffers) Get() []byte { return copyPool.Get().(*[copyBytes]byte)[:] }

func (copyBuffers) Put(buffer []byte) { copyPool.Put((*[copyBytes]byte)(buffer)) }

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}
