package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
)

func TestPagesThatAreListedMayAsk(t *testing.T) {
	app := "https://app.example.com"
	listed := []string{"--cors-origin", app, "--cors-origin", "http://localhost:3000", "--cors-header", "X-User", "--cors-credentials"}
	for _, each := range []struct {
		options        []string
		origin         string
		method         string
		allowed, vary  string
		credentials    string
		methods, heads string
	}{
		{nil, app, "POST", "", "", "", "", ""},
		{listed, app, "POST", app, "Origin", "true", "", ""},
		{listed, "http://localhost:3000", "OPTIONS", "http://localhost:3000", "Origin|Access-Control-Request-Method, Access-Control-Request-Headers", "true", "GET, HEAD, POST", "content-type, x-user"},
		{listed, "https://evil.example.com", "POST", "", "Origin", "", "", ""},
		{listed, "https://evil.example.com", "OPTIONS", "", "Origin", "", "", ""},
		{listed, app + ".evil.com", "OPTIONS", "", "Origin", "", "", ""},
		{listed, "null", "OPTIONS", "", "Origin", "", "", ""},
		{listed, "", "POST", "", "Origin", "", "", ""},
		{[]string{"--cors-origin", "*"}, app, "OPTIONS", "*", "Access-Control-Request-Method, Access-Control-Request-Headers", "", "GET, HEAD, POST", "content-type"},
	} {
		g, _ := startEcho(t, nil, each.options...)
		header := []string{"Content-Type", "application/json", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "Content-Type, X-User, X-Evil"}
		if each.origin != "" {
			header = append(header, "Origin", each.origin)
		}
		got := g.ask(t, each.method, "/svc/p", gatewaytest.Pair, header...)
		said := func(name string) string { return strings.Join(got.header.Values("Access-Control-"+name), "|") }
		found := fmt.Sprint([]string{said("Allow-Origin"), strings.Join(got.header.Values("Vary"), "|"), said("Allow-Credentials"), said("Allow-Methods"), said("Allow-Headers")})
		if want := fmt.Sprint([]string{each.allowed, each.vary, each.credentials, each.methods, each.heads}); found != want {
			t.Errorf("%s by %q of %q: %s, not %s", each.method, each.origin, each.options, found, want)
		}
		if status := map[bool]int{true: http.StatusOK, false: http.StatusMethodNotAllowed}[each.allowed != ""]; each.method == "OPTIONS" && got.status != status {
			t.Errorf("%q: %d", each.origin, got.status)
		}
	}
}

func TestAPageThatIsListedMayPostAForm(t *testing.T) {
	g, _ := startEcho(t, nil, "--cors-origin", "https://app.example.com")
	for origin, status := range map[string]int{"https://app.example.com": 200, "https://evil.example.com": 403} {
		got := g.post(t, gatewaytest.Pair, "Origin", origin, "Content-Type", "text/plain")
		if got.status != status {
			t.Errorf("%s: %d %s", origin, got.status, got.body)
		}
	}
}
