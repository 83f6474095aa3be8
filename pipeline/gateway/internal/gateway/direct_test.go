package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/buffers"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/upstream"
	"pipeline/gateway/pipelinepb"
)

// asked is a call as an upstream saw it.
type asked struct {
	method, path, data, trace string
	limit                     time.Duration
}

// local is the server whose child the gateway is: it takes JSON, and answers as a test says.
type local struct {
	instant
	calls  chan asked
	answer func(context.Context, *upstream.Call) ([]byte, error)
}

func (l *local) Unary(ctx context.Context, call *upstream.Call) (upstream.Reply, error) {
	l.calls <- asked{call.Method, call.Path, string(call.Data), call.Headers.Trace(), call.Limit.After}
	data, err := l.answer(ctx, call)
	return upstream.Reply{Data: data}, err
}

// startLocal runs a gateway before a server of its own.
func startLocal(t *testing.T, answer func(context.Context, *upstream.Call) ([]byte, error), args ...string) (*running, *local) {
	t.Helper()
	server := &local{calls: make(chan asked, 64), answer: answer}
	server.traits = upstream.Traits{IsLocal: true, TakesJSON: true}
	cfg := configOf(t, append([]string{"--listen", "127.0.0.1:0", "--backend", "link:/unused"}, args...)...)
	g := startWith(t, cfg, func(config.Backend, *config.BackendTLS) (upstream.Upstream, error) { return server, nil })
	g.waitUntilServing(t, 1)
	return g, server
}

const jsonAnswer = `{"err_no":0,"err_msg":"","key":["k"],"value":["1"],"tensors":[]}`

func answered(context.Context, *upstream.Call) ([]byte, error) {
	return append(buffers.Get(), jsonAnswer...), nil
}

func TestJSONPassesAsItIs(t *testing.T) {
	g, server := startLocal(t, answered)
	for _, body := range []string{gatewaytest.Pair, "", "{", "[1]", `{"key":[1e999]}`, "\xff", " {} x", `{"\u0074ensors":[]}`} {
		got := g.post(t, body, "Traceparent", "t", "Grpc-Timeout", "5S")
		want := asked{upstream.JSON, "/svc/prediction", body, "t", 5 * time.Second}
		if said := gatewaytest.Soon(t, "a call", server.calls); said != want {
			t.Errorf("%q: asked %+v", body, said)
		}
		if got.status != 200 || got.body != jsonAnswer || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %+v", body, got)
		}
		if length := got.header.Get("Content-Length"); length != "64" {
			t.Errorf("content-length is %q", length)
		}
	}
	gatewaytest.WantIn(t, g.ask(t, "GET", "/metrics", "").body, `pipeline_gateway_requests_total{code="200",route="inference"} 8`)
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
}

func TestAPathIsToldDecodedUnlessItHasALineEnd(t *testing.T) {
	g, server := startLocal(t, func(_ context.Context, call *upstream.Call) ([]byte, error) {
		return append(buffers.Get(), map[bool]string{true: jsonAnswer}[call.Method == upstream.JSON]...), nil
	})
	for target, want := range map[string]string{"/a%20b/%C3%A9": "/a b/é", "/a/b%23c?x=1": "/a/b#c", "/a%0Atraceparent/b": "", "/a/%0A": ""} {
		got := g.ask(t, "POST", target, "{}")
		said := gatewaytest.Soon(t, "a call", server.calls)
		if said.path != want || (said.method == upstream.JSON) != (want != "") || got.status != 200 {
			t.Errorf("%s: asked %+v, answered %d", target, said, got.status)
		}
	}
}

func TestTensorsAndLongBodiesAreTranslated(t *testing.T) {
	g, server := startLocal(t, func(context.Context, *upstream.Call) ([]byte, error) {
		return proto.Marshal(gatewaytest.ResponseOf("1"))
	})
	long := `{"key":["` + strings.Repeat("x", 64<<10) + `"]}`
	for _, body := range []string{`{"tensors":[{"elem_type":1,"float_data":[1.5],"shape":[1]}],"name":"n"}`, long} {
		got := g.post(t, body)
		said := gatewaytest.Soon(t, "a call", server.calls)
		request := &pipelinepb.Request{}
		if err := proto.Unmarshal([]byte(said.data), request); err != nil || request.Name != "svc" || request.Method != "prediction" {
			t.Errorf("asked %.200v (%v)", request, err)
		}
		if said.method != pipelinepb.PipelineService_Inference_FullMethodName || said.path != "" || got.status != 200 {
			t.Errorf("asked %.100s %q, answered %d %.100s", said.method, said.path, got.status, got.body)
		}
	}
	g.post(t, `{"tensors":[{"shape":[1e999]}]}`).isRefusal(t, 400, 8000, "no double can hold")
	g.post(t, `{"tensors":7}`).isRefusal(t, 400, 8000, "does not fit")
	if len(server.calls) != 0 {
		t.Errorf("asked %+v", <-server.calls)
	}
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
}

func TestFailuresOfJSONAreTold(t *testing.T) {
	var failed error
	g, _ := startLocal(t, func(context.Context, *upstream.Call) ([]byte, error) { return nil, failed })
	failed = &failure.Error{Status: 400, ErrNo: 8000, Text: "the request is not valid JSON"}
	g.post(t, "{").isRefusal(t, 400, 8000, "the request is not valid JSON")
	failed = &failure.Error{Status: 503, ErrNo: 3004, Text: "full", RetryAfter: 7}
	got := g.post(t, gatewaytest.Pair)
	got.isRefusal(t, 503, 3004, "full")
	if got.header.Get("Retry-After") != "7" {
		t.Errorf("%v", got.header)
	}
	failed = upstream.ErrNeverLeft
	g.post(t, gatewaytest.Pair).isRefusal(t, 503, 3001, "no backend could be reached")
	failed = io.ErrUnexpectedEOF
	g.post(t, gatewaytest.Pair).isRefusal(t, 500, 10000, "internal error of the gateway")
}

func TestAnAnswerInJSONHasItsLimits(t *testing.T) {
	g, _ := startLocal(t, answered, "--max-json-bytes", "63")
	g.post(t, "{}").isRefusal(t, 200, 8000, "the answer is larger than max_json_bytes (63 bytes)")
	long := `{"err_no":0,"err_msg":"` + strings.Repeat("x", 9000) + `","key":[],"value":[],"tensors":[]}`
	g, _ = startLocal(t, func(context.Context, *upstream.Call) ([]byte, error) { return []byte(long), nil }, "--gzip-min-bytes", "70")
	if got := g.post(t, "{}"); got.body != long || got.header.Get("Content-Length") != "9058" {
		t.Errorf("%d bytes, %v", len(got.body), got.header)
	}
	if got := g.post(t, "{}", "Accept-Encoding", "gzip"); got.header.Get("Content-Encoding") != "gzip" || len(got.body) > 200 {
		t.Errorf("%d bytes, %v", len(got.body), got.header)
	}
}

func TestALocalServerThatIsSilentIsNotAwaitedForEver(t *testing.T) {
	g, _ := startLocal(t, func(ctx context.Context, _ *upstream.Call) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, "--slack", "1ms")
	g.post(t, gatewaytest.Pair, "Grpc-Timeout", "1m").isRefusal(t, 504, 6000, "deadline")
}

func TestAStoppingGatewayEndsConnectionsWithAnswersInJSONToo(t *testing.T) {
	g, _ := startLocal(t, answered)
	g.Draining.Store(true)
	got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
	gatewaytest.WantIn(t, got, "HTTP/1.1 200 OK\r\n", "Connection: close\r\n", jsonAnswer)
	if response, err := http.Get(g.url + "/health/ready"); err != nil || response.Body.Close() != nil || response.StatusCode != 503 {
		t.Errorf("%v, %v", response, err)
	}
}
