package gateway

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/deadline"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/logging"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/tracing"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

// startEcho runs a gateway in front of one server that echoes.
func startEcho(t *testing.T, change func(*config.Config), args ...string) (*running, *gatewaytest.Double) {
	t.Helper()
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := start(t, change, append(args, "--backend", backend.Address)...)
	g.waitUntilServing(t, 1)
	return g, backend
}

func TestAnInferenceIsAskedAndAnswered(t *testing.T) {
	g, _ := startEcho(t, nil)
	for _, header := range [][]string{
		nil, {"Content-Type", "application/x-www-form-urlencoded"}, {"Content-Type", "rubbish"}, {"Accept", "text/html"},
		{"X-Http-Method-Override", "GET"}, {"Te", "trailers"}, {"Content-Encoding", "identity"},
	} {
		got := g.post(t, gatewaytest.Pair, header...)
		answer := got.response(t)
		if got.status != 200 || len(answer.Key) != 1 || answer.Value[0] != "1" {
			t.Errorf("%q: %d %s", header, got.status, got.body)
		}
		for name := range got.header {
			switch name {
			case "Content-Type", "Content-Length", "Date", "Connection":
			default:
				t.Errorf("%q: the answer has a header %s", header, name)
			}
		}
	}
}

func TestTheURLStandsAboveTheBody(t *testing.T) {
	asked := make(chan *pipelinepb.Request, 9)
	backend := gatewaytest.StartDouble(t, func(_ context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
		asked <- request
		return &pipelinepb.Response{}, nil
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address)
	for path, want := range map[string][2]string{
		"/svc/predict:now?name=evil":           {"svc", "predict:now"},
		"/%E6%9C%8D%201/%70redict":             {"服 1", "predict"},
		"/svc/a%3Fb":                           {"svc", "a?b"},
		"/" + strings.Repeat("n", 9000) + "/m": {strings.Repeat("n", 9000), "m"},
	} {
		got := g.ask(t, "POST", path, `{"name":"other","method":"other","clientip":"c"}`)
		if got.status != 200 {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
		if request := <-asked; request.Name != want[0] || request.Method != want[1] || request.Clientip != "c" {
			t.Errorf("%.80s: the backend was asked %v", path, request)
		}
	}
}

func TestOtherMethodsAreRefused(t *testing.T) {
	g, _ := startEcho(t, nil)
	for _, test := range []struct{ method, path, allow string }{
		{"GET", "/svc/prediction", "POST"}, {"DELETE", "/svc/prediction", "POST"}, {"OPTIONS", "/svc/prediction", "POST"},
		{"POST", "/health/live", "GET, HEAD"}, {"PUT", "/metrics", "GET, HEAD"},
	} {
		got := g.ask(t, test.method, test.path, "")
		got.isRefusal(t, 405, 3000, "method "+test.method+" is not allowed here: use "+test.allow)
		if allow := got.header.Get("Allow"); allow != test.allow {
			t.Errorf("%s %s: allow is %q", test.method, test.path, allow)
		}
	}
	got := g.ask(t, "HEAD", "/svc/prediction", "")
	if got.status != 405 || got.body != "" || got.header.Get("Content-Length") == "0" {
		t.Errorf("HEAD: %+v", got)
	}
	gatewaytest.WantIn(t, g.raw(t, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"), "405 Method Not Allowed", "this is not a proxy", "Connection: close")
}

func TestHealthIsOurs(t *testing.T) {
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address)
	if got := g.ask(t, "GET", "/health/ready", ""); got.status != 200 || got.body != `{"status":"ok"}` {
		t.Errorf("ready: %+v", got)
	}
	g.ask(t, "GET", "/health/other", "").isRefusal(t, 404, 3002, "GET /health/live or /health/ready")
	backend.Health.Shutdown()
	gatewaytest.WaitUntil(t, "not ready", func() bool { return g.ask(t, "GET", "/health/ready", "").status == 503 })
	if got := g.ask(t, "GET", "/health/ready", ""); got.body != `{"status":"not ready"}` {
		t.Errorf("not ready: %+v", got)
	}
	if got := g.ask(t, "HEAD", "/health/live", ""); got.status != 200 || got.body != "" {
		t.Errorf("live: %+v", got)
	}
}

func TestErrorsOfTheBackendAreTold(t *testing.T) {
	backend := gatewaytest.StartDouble(t, func(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
		if request.Method == "overload" {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(upstream.ErrNoKey, "3004", "other", "x"))
			return nil, status.Error(codes.ResourceExhausted, "the server is full: é")
		}
		return nil, status.Error(codes.NotFound, "no such model")
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address)
	got := g.ask(t, "POST", "/svc/overload", "{}")
	got.isRefusal(t, 503, 3004, "the server is full: é")
	if got.header.Get("Retry-After") != "1" || got.header.Get("Grpc-Trailer-Other") != "" {
		t.Errorf("headers: %v", got.header)
	}
	g.post(t, "{}").isRefusal(t, 404, 3002, "no such model")
	if calls := backend.Calls.Load(); calls != 2 {
		t.Errorf("what a backend has seen was repeated: %d calls", calls)
	}
}

// Deadlines --------------------------------------------------------------------------------

func TestTheBackendIsToldTheDeadlineAndGivenTheSlack(t *testing.T) {
	type told struct {
		text string
		left time.Duration
		is   bool
	}
	asked := make(chan told, 1)
	backend := gatewaytest.StartDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
		given, _ := metadata.FromIncomingContext(ctx)
		end, is := ctx.Deadline()
		asked <- told{strings.Join(given.Get(upstream.TimeoutKey), ","), time.Until(end), is}
		return &pipelinepb.Response{}, nil
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address, "--slack", "1h")
	standard := startReady(t, "--backend", backend.Address, "--timeout", "2h", "--slack", "1h")
	for _, test := range []struct {
		of          *running
		header      []string
		text        string
		least, most time.Duration
	}{
		{g, nil, "", 0, 0},
		{g, []string{"Grpc-Timeout", "0m"}, "0m", 59 * time.Minute, time.Hour},
		{g, []string{"Grpc-Timeout", " 60M "}, "60M", 119 * time.Minute, 2 * time.Hour},
		{g, []string{"Grpc-Timeout", "99999999H"}, "99999999H", 10000 * time.Hour, deadline.LongestTimeout + time.Hour},
		{standard, nil, "7200000m", 179 * time.Minute, 3 * time.Hour},
		{standard, []string{"Grpc-Timeout", "1H"}, "1H", 119 * time.Minute, 2 * time.Hour},
	} {
		if got := test.of.post(t, "{}", test.header...); got.status != 200 {
			t.Fatalf("%q: %d %s", test.header, got.status, got.body)
		}
		got := <-asked
		if got.text != test.text || got.is != (test.most > 0) || (got.is && (got.left < test.least || got.left > test.most)) {
			t.Errorf("%q: the backend received %+v", test.header, got)
		}
	}
}

func TestABackendThatDoesNotAnswerInTimeIsATimeout(t *testing.T) {
	backend := gatewaytest.StartDouble(t, func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) {
		<-t.Context().Done()
		return nil, context.Canceled
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address, "--slack", "5ms")
	g.post(t, "{}", "Grpc-Timeout", "5m").isRefusal(t, 504, 6000, "the request's deadline passed before backend ")
}

func TestTheEndOfTheTimeMayBeSeenByTheBackendFirst(t *testing.T) {
	backend := gatewaytest.StartDouble(t, func(context.Context, *pipelinepb.Request) (*pipelinepb.Response, error) {
		return nil, status.Error(codes.DeadlineExceeded, "of gRPC")
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address)
	g.post(t, "{}", "Grpc-Timeout", "1H").isRefusal(t, 504, 6000, "the request's deadline passed before backend ")
}

func TestWithoutADoorTheGatewayJudgesAsItCan(t *testing.T) {
	g, _ := startEcho(t, nil)
	for _, value := range []string{"never", "", "123456789S"} {
		g.post(t, "{}", "Grpc-Timeout", value).isRefusal(t, 400, 8000, "invalid Grpc-Timeout")
	}
	g.post(t, "[]").isRefusal(t, 400, 8000, "the request does not fit its message")
	for _, body := range []string{`{"x":1e}`, `{"x":1e400}`, `{"x":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`} {
		g.post(t, body).isRefusal(t, 400, 8000, "the request has")
	}
	for _, method := range []string{"FOO", "post", "PROPFIND"} {
		got := g.ask(t, method, "/svc/prediction", gatewaytest.Pair)
		got.isRefusal(t, 405, 3000, "method "+method+" is not allowed here: use POST")
		if allow := got.header.Get("Allow"); allow != "POST" {
			t.Errorf("%s: allow is %q", method, allow)
		}
		g.ask(t, method, "/health/live", "").isRefusal(t, 405, 3000, "use GET, HEAD")
		g.ask(t, method, "/nowhere", "").isRefusal(t, 404, 3002, "no such path: /nowhere")
	}
	for _, target := range []string{"/svc/\xff", "/svc/\xc3\xa9", "/svc/p?\xff"} {
		got := g.raw(t, "POST "+target+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		gatewaytest.WantIn(t, got, "HTTP/1.1 400 ", `"err_no":8000`, "not ASCII")
	}
}

func TestACallerThatLeavesCancelsItsCall(t *testing.T) {
	entered, cancelled := make(chan struct{}), make(chan struct{})
	backend := gatewaytest.StartDouble(t, func(ctx context.Context, _ *pipelinepb.Request) (*pipelinepb.Response, error) {
		close(entered)
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--backend", backend.Address)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := http.DefaultClient.Do(newRequest(t, "POST", g.url+"/svc/p", "{}").WithContext(ctx))
		left <- err
	}()
	<-entered
	leave()
	<-left
	<-cancelled
	gatewaytest.WaitUntil(t, "the caller that left is counted", func() bool {
		return strings.Contains(g.ask(t, "GET", "/metrics", "").body, `pipeline_gateway_requests_total{code="499",route="inference"} 1`)
	})
}

// Log and metrics --------------------------------------------------------------------------

func TestEveryNthRequestIsLogged(t *testing.T) {
	g, backend := startEcho(t, nil, "--access-log-sample", "2")
	for range 4 {
		g.post(t, gatewaytest.Pair)
	}
	wanted := `"POST /svc/prediction HTTP/1.1" 200 `
	gatewaytest.WaitUntil(t, "the last line", func() bool { return strings.Count(g.log.String(), wanted) == 2 })
	gatewaytest.WantIn(t, g.log.String(), backend.Address, "INFO backend")
}

func TestTheLogHasOneLineARequestWhateverItSays(t *testing.T) {
	text := &gatewaytest.Lines{}
	logging.Standard(logging.New(text)).Print("one\r\ntwo\n")
	if got := text.String(); got != `WARNING one\r\ntwo`+"\n" {
		t.Errorf("%q", got)
	}
}

func TestNothingInTheLogMovesACursor(t *testing.T) {
	text := &gatewaytest.Lines{}
	logging.New(text).Info("\x1b[31mred\x00\x7f\u009b1m\u2028\u202e\xff\t é 中 \\ \"")
	want := `INFO \x1b[31mred\x00\x7f\u009b1m\u2028\u202e\xff\t é 中 \ "` + "\n"
	if got := text.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheAccessLogHasNoQueries(t *testing.T) {
	g := startBoth(t, told, nil, "--access-log-sample", "1")
	g.post(t, gatewaytest.Pair)
	g.ask(t, "POST", "/svc/prediction?token=secret", gatewaytest.Pair)
	g.ask(t, "GET", "/v2?token=secret", "")
	g.raw(t, "GET http://user:secret@h/v2/x?token=secret HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	g.ask(t, "GET", "/"+strings.Repeat("x", 5000), "")
	gatewaytest.WaitUntil(t, "five lines", func() bool { return strings.Count(g.log.String(), " HTTP/1.1\" ") == 5 })
	if text := g.log.String(); strings.Contains(text, "secret") || strings.Contains(text, strings.Repeat("x", 2000)) {
		t.Error(text)
	}
	gatewaytest.WantIn(t, g.log.String(), `"GET /v2 HTTP/1.1"`, `"GET /v2/x HTTP/1.1"`)
}

func TestMetricsTellWhatHappened(t *testing.T) {
	g, backend := startEcho(t, nil)
	g.post(t, gatewaytest.Pair)
	g.post(t, "{")
	got := g.ask(t, "GET", "/metrics", "")
	if got.status != 200 || !strings.HasPrefix(got.header.Get("Content-Type"), "text/plain") || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", got.status, got.header)
	}
	gatewaytest.WantIn(t, got.body,
		`pipeline_gateway_requests_total{code="200",route="inference"} 1`,
		`pipeline_gateway_requests_total{code="400",route="inference"} 1`,
		`pipeline_gateway_request_duration_seconds_count{route="inference"} 2`,
		`pipeline_gateway_backend_up{backend="`+backend.Address+`"} 1`,
		`pipeline_gateway_requests_in_flight 1`,
		`pipeline_gateway_received_bytes_total 28`,
		`pipeline_gateway_build_info{version="dev"} 1`,
	)
	for line := range strings.Lines(got.body) {
		if !strings.HasPrefix(line, metrics.MetricPrefix) && !strings.HasPrefix(line, "# HELP "+metrics.MetricPrefix) && !strings.HasPrefix(line, "# TYPE "+metrics.MetricPrefix) {
			t.Errorf("a metric of another name: %s", line)
		}
	}
}

// Sizes ------------------------------------------------------------------------------------

func TestMetadataThatABackendDoesNotTakeIsRefused(t *testing.T) {
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{Server: []grpc.ServerOption{grpc.MaxHeaderListSize(16 << 10)}})
	g := startReady(t, "--backend", backend.Address)
	long := strings.Repeat("b", 20_000)
	for _, name := range []string{"Authorization", "Grpc-Metadata-A"} {
		g.post(t, gatewaytest.Pair, name, long).isRefusal(t, 431, 8000, "(16384 bytes)")
	}
	if got := g.post(t, gatewaytest.Pair, "Authorization", long[:10_000], "Cookie", long); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestAnAnswerThatABackendCannotSendIsNotToBeAskedForAgain(t *testing.T) {
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{Server: []grpc.ServerOption{grpc.MaxSendMsgSize(1000)}})
	g := startReady(t, "--backend", backend.Address)
	g.post(t, `{"value":["`+strings.Repeat("x", 2000)+`"]}`).isRefusal(t, 500, 8000, "larger than the backend's max_message_bytes")
}

func TestAnAnswerThatIsTooLongAsJSONIsAnErrorInstead(t *testing.T) {
	g := startReady(t, "--max-json-bytes", "1000", "--backend", gatewaytest.StartDouble(t, gatewaytest.Large(2000), gatewaytest.DoubleOptions{}).Address)
	g.post(t, gatewaytest.Pair).isRefusal(t, 200, 8000, "the answer is larger than max_json_bytes (1000 bytes): ask over gRPC")
}

func TestATraceIsBegunAndWritten(t *testing.T) {
	var told sync.Map
	backend := gatewaytest.StartDouble(t, func(ctx context.Context, request *pipelinepb.Request) (*pipelinepb.Response, error) {
		said, _ := metadata.FromIncomingContext(ctx)
		told.Store(request.Value[0], strings.Join(said.Get("traceparent"), " "))
		return gatewaytest.Echo(ctx, request)
	}, gatewaytest.DoubleOptions{})
	g := startReady(t, "--traces-per-s", "1", "--access-log-sample", "1", "--backend", backend.Address)
	given := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	g.post(t, `{"key":["a"],"value":["mine"]}`, "Traceparent", given)
	g.post(t, `{"key":["a"],"value":["none"]}`)
	if found, _ := told.Load("mine"); found != given {
		t.Errorf("%v", found)
	}
	found, _ := told.Load("none")
	made, _ := found.(string)
	if !tracing.IsValid(made) || !strings.HasSuffix(made, "-01") {
		t.Fatalf("%v", made)
	}
	gatewaytest.WaitUntil(t, "both lines", func() bool { return strings.Count(g.log.String(), `"POST /svc/prediction HTTP/1.1"`) == 2 })
	gatewaytest.WantIn(t, g.log.String(), " - "+given[3:35]+"\n", " - "+made[3:35]+"\n")
}
