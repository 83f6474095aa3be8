package gateway

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pipeline/gateway/internal/gatewaytest"
)

// callers are those of a file, but for the digests of their tokens.
const callers = `{"callers": [
		{"name": "alice", "roles": ["infer"], "tokens": ["A"], "limits": {"requests_per_s": 0.000001, "burst": 4}},
		{"name": "root", "roles": ["infer", "observe", "admin"], "tokens": ["R"]}]}`

func hashOf(token string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(token))) }

// guarded runs a gateway that lets in who the file names.
func guarded(t *testing.T, more ...string) (*running, <-chan *http.Request) {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "callers.json")
	text := strings.NewReplacer(`"A"`, `"`+hashOf("a-token")+`"`, `"R"`, `"`+hashOf("r-token")+`"`).Replace(callers)
	document := filepath.Join(folder, "access.json")
	said := `{"callers_file": "` + file + `", "anonymous": [], "metadata": ["x-user"]}`
	for path, text := range map[string]string{file: text, document: said} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked := make(chan *http.Request, 99)
	web := gatewaytest.StartWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked <- r }))
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	more = append(more, "--access", document, "--backend", backend.Address+"/"+web[strings.LastIndex(web, ":")+1:])
	return startReady(t, more...), asked
}

func TestOnlyCallersThatAreNamedComeIn(t *testing.T) {
	g, _ := guarded(t)
	alice, root := []string{"Authorization", "Bearer a-token"}, []string{"X-Api-Key", "r-token"}
	for _, each := range []struct {
		method, path string
		header       []string
		status       int
		says         string
	}{
		{"GET", "/health/live", nil, 200, "ok"},
		{"POST", "/svc/prediction", nil, 401, `"err_no":3010`},
		{"POST", "/svc/prediction", []string{"Authorization", "Bearer wrong"}, 401, "nobody has the token"},
		{"POST", "/svc/prediction", alice, 200, `"err_no":0`},
		{"GET", "/metrics", alice, 403, `"err_no":3011`},
		{"GET", "/metrics", root, 200, `pipeline_gateway_admissions_total{caller="alice",outcome="forbidden"} 1`},
		{"POST", "/v2/repository/models/m/load", alice, 403, `{"error":"caller alice may not do this: it takes the role admin"}`},
		{"POST", "/v2/repository/models/m/load", root, 200, ""},
		{"POST", "/v1/completions", nil, 401, `{"error":{"code":"3010","message":"this is for callers`},
		{"POST", "/v1/responses", alice, 200, ""},
		{"POST", "/v1/none", alice, 403, `"type":"invalid_request_error"`},
		{"GET", "/v2/models/m", nil, 401, `{"error":`},
	} {
		got := g.ask(t, each.method, each.path, gatewaytest.Pair, each.header...)
		if got.status != each.status || !strings.Contains(got.body, each.says) {
			t.Errorf("%s %s %q: %d %s", each.method, each.path, each.header, got.status, got.body)
		}
		if (got.status == 401) != (got.header.Get("WWW-Authenticate") == "Bearer") {
			t.Errorf("%s: %v", each.path, got.header)
		}
	}
	for _, secret := range []string{"a-token", "r-token", "wrong"} {
		if strings.Contains(g.log.String(), secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
}

func TestAServerIsToldWhoAsks(t *testing.T) {
	g, asked := guarded(t)
	g.ask(t, "GET", "/v2", "", "X-Api-Key", "r-token", "X-Pipeline-Caller", "alice")
	if got := (<-asked).Header.Values("X-Pipeline-Caller"); len(got) != 1 || got[0] != "root" {
		t.Errorf("%q", got)
	}
}

func TestAServerIsToldWhatCallersMaySet(t *testing.T) {
	for _, each := range []struct {
		more []string
		want string
	}{{nil, "carol   application/json"}, {[]string{"--allow-metadata", "X-Api-Key"}, "carol r-token  application/json"}} {
		g, asked := guarded(t, each.more...)
		g.ask(t, "GET", "/v2", "", "X-Api-Key", "r-token", "X-User", "carol", "X-Admin", "1", "Accept", "application/json")
		got := (<-asked).Header
		if said := strings.Join([]string{got.Get("X-User"), got.Get("X-Api-Key"), got.Get("X-Admin"), got.Get("Accept")}, " "); said != each.want {
			t.Errorf("%q, not %q", said, each.want)
		}
	}
}

// saying runs a gateway with a document.
func saying(t *testing.T, said string) *running {
	t.Helper()
	document := filepath.Join(t.TempDir(), "access.json")
	if err := os.WriteFile(document, []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	return startReady(t, "--access", document, "--backend", backend.Address)
}

func TestBytesAreLimitedBeforeTheyAreRead(t *testing.T) {
	g := saying(t, `{"anonymous": ["infer"], "limits": {"bytes_per_s": 0.001, "bytes_burst": 1000}}`)
	if got := g.post(t, gatewaytest.Pair); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	got := g.raw(t, "POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 990\r\n\r\n") // and nothing of it
	gatewaytest.WantIn(t, got, "HTTP/1.1 429 ", "Retry-After: 3600\r\n", `"err_no":3012`)
	got = g.raw(t, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 990\r\n\r\n")
	gatewaytest.WantIn(t, got, "HTTP/1.1 429 ", "Retry-After: 60\r\n", `"type":"rate_limit_error"`)
}

func TestWhatACallerHoldsIsBounded(t *testing.T) {
	g := saying(t, `{"anonymous": ["infer"], "limits": {"buffered_bytes": 100000}}`)
	g.post(t, gatewaytest.Pair).response(t)
	large := g.post(t, `{"key":["a"],"value":["`+strings.Repeat("x", 200_000)+`"]}`) // some of it may be in a buffer that was there
	if large.status != 413 && large.status != 429 || !strings.Contains(large.body, "(buffered_bytes)") {
		t.Errorf("%d %s", large.status, large.body)
	}
	gatewaytest.WaitUntil(t, "nothing is held", func() bool { return g.Budget.Held.Load() == 0 })
}

func TestConnectionsOfAnAddressAreBounded(t *testing.T) {
	document := filepath.Join(t.TempDir(), "access.json")
	if err := os.WriteFile(document, []byte(`{"anonymous": ["infer"], "connections_per_address": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startChild(t, "--parent", "--access", document, "--backend", gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{}).Address)
	c.readReady(t)
	address := strings.TrimPrefix(c.url, "http://")
	first, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ask := "GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n"
	answer := make([]byte, 999)
	_, _ = io.WriteString(first, ask)
	if n, err := first.Read(answer); err != nil || !strings.Contains(string(answer[:n]), " 200 ") {
		t.Fatal(string(answer[:n]), err)
	}
	second := &running{address: address}
	gatewaytest.WantIn(t, second.raw(t, ask), "HTTP/1.1 429 ", "retry-after: 1", "connections_per_address")
	_ = first.Close()
	gatewaytest.WaitUntil(t, "there is room again", func() bool {
		return strings.Contains(second.raw(t, strings.Replace(ask, "Host", "Connection: close\r\nHost", 1)), " 200 ")
	})
}

func TestCallersBehindAProxyAreTheirAddresses(t *testing.T) {
	g := saying(t, `{"anonymous": ["infer"], "limits": {"requests_per_s": 0.000001, "burst": 1}, "trusted_proxies": ["127.0.0.1"]}`)
	for _, each := range []struct {
		forwarded string
		status    int
	}{{"192.0.2.1", 200}, {"192.0.2.1", 429}, {"192.0.2.2", 200}, {"192.0.2.9, 192.0.2.1", 429}} {
		if got := g.post(t, gatewaytest.Pair, "X-Forwarded-For", each.forwarded); got.status != each.status {
			t.Errorf("%s: %d", each.forwarded, got.status)
		}
	}
}

func TestAGreedyCallerIsToldWhenToComeAgain(t *testing.T) {
	g, _ := guarded(t)
	var last reply
	for range 5 {
		last = g.post(t, gatewaytest.Pair, "Authorization", "Bearer a-token")
	}
	if last.status != 429 || last.header.Get("Retry-After") != "3600" || !strings.Contains(last.body, `"err_no":3012`) {
		t.Errorf("%d %v %s", last.status, last.header, last.body)
	}
	if got := g.post(t, gatewaytest.Pair, "X-Api-Key", "r-token"); got.status != 200 {
		t.Errorf("another caller: %d", got.status)
	}
}
