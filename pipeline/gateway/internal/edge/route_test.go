package edge

import (
	"bufio"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// parse reads a request line as the server does.
func parse(t *testing.T, method, target string) *http.Request {
	t.Helper()
	text := method + " " + target + " HTTP/1.1\r\nHost: h\r\n\r\n"
	request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return request
}

func TestPathsAreRoutedAsTheDoorRoutesThem(t *testing.T) {
	for _, test := range []struct {
		target       string
		want         route
		name, method string
		raw          string
	}{
		{"/svc/prediction", routeInference, "svc", "prediction", ""},
		{"/svc/a:b", routeInference, "svc", "a:b", ""},
		{"/svc/p?name=evil#y", routeInference, "svc", "p", "/svc/p"},
		{"/svc/p#f", routeInference, "svc", "p", "/svc/p#f"},
		{"/svc/%23p#f", routeInference, "svc", "#p", "/svc/%23p#f"},
		{"/%E6%9C%8D%201/%70redict", routeInference, "服 1", "predict", ""},
		{"http://elsewhere:80/svc/p", routeInference, "svc", "p", "/svc/p"},
		{"/svc/..", routeInference, "svc", "..", ""},
		{"/svc/%20", routeInference, "svc", " ", ""},
		{"/health/live", routeHealth, "health", "live", ""},
		{"/health", routeHealth, "health", "ready", ""},
		{"/healthz", routeHealth, "health", "ready", ""},
		{"/health/x", routeHealth, "health", "x", ""},
		{"/metrics", routeMetrics, "", "", ""},
		{"/metrics/", routeMetrics, "", "", ""},
		{"/", routePassthrough, "", "", ""},
		{"*", routePassthrough, "", "", ""},
		{"/svc", routePassthrough, "", "", ""},
		{"/svc/", routePassthrough, "", "", ""},
		{"/svc/p/", routePassthrough, "", "", ""},
		{"/svc/p/x", routePassthrough, "", "", ""},
		{"//p", routePassthrough, "", "", "http://h//p"},
		{"///", routePassthrough, "", "", "http://h///"},
		{"/v2/p", routePassthrough, "", "", ""},
		{"/api/p", routePassthrough, "", "", ""},
		{"/v1/completions", routePassthrough, "", "", ""},
		{"/a%2Fb/x", routePassthrough, "", "", ""},
		{"/%FF%FE/x", routePassthrough, "", "", ""},
		{"/svc/\xff", routePassthrough, "", "", ""},
		{"http://elsewhere", routePassthrough, "", "", "/"},
	} {
		request := parse(t, http.MethodPost, test.target)
		got, name, method := routeOf(request, true)
		if got != test.want || name != test.name || method != test.method {
			t.Errorf("%q: got %v, %q, %q", test.target, got, name, method)
		}
		if test.raw == "" {
			test.raw = test.target
		}
		if raw := rawTarget(request); raw != test.raw {
			t.Errorf("%q: is passed on as %q", test.target, raw)
		}
	}
}

func TestMethodsThatOnlyTheDoorKnowsAreLeftToIt(t *testing.T) {
	for method, want := range map[string]route{
		"GET": routeInference, "HEAD": routeInference, "TRACE": routeInference,
		"PROPFIND": routePassthrough, "post": routePassthrough, "NONSENSE": routePassthrough,
	} {
		if got, _, _ := routeOf(parse(t, method, "/svc/p"), true); got != want {
			t.Errorf("%s: got %v", method, got)
		}
		if got, _, _ := routeOf(parse(t, method, "/svc/p"), false); got != routeInference {
			t.Errorf("%s, without a door: got %v", method, got)
		}
	}
	if got, _, _ := routeOf(parse(t, "CONNECT", "a:1"), true); got != routeNowhere {
		t.Errorf("CONNECT: got %v", got)
	}
}

func FuzzRoute(f *testing.F) {
	for _, seed := range []string{"/svc/p", "/a%2Fb/x", "/%ff/x", "/svc/p#f", "//x", "/v2/x", "/health/live", "/healthz", "/metrics/", "/a/b/c", "/%23/#"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		address, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return
		}
		request := &http.Request{Method: http.MethodPost, URL: address, RequestURI: target, Host: "h"}
		got, name, method := routeOf(request, true)
		if rawTarget(request) == "" {
			t.Fatalf("%q is passed on as an empty target", target)
		}
		if got != routeInference && got != routeHealth {
			return
		}
		raw, _, _ := strings.Cut(target, "?")
		raw, _, _ = strings.Cut(raw, "#")
		decoded, err := url.PathUnescape(raw)
		if decoded == "/health" || decoded == "/healthz" {
			decoded = "/health/ready"
		}
		if err != nil || decoded != "/"+name+"/"+method || !utf8.ValidString(decoded) {
			t.Fatalf("%q became %q and %q", target, name, method)
		}
		if strings.Contains(name+method, "/") || name == "" || method == "" || name == "v2" || name == "api" || name == "v1" {
			t.Fatalf("%q: %q and %q are not a service and a method", target, name, method)
		}
	})
}
