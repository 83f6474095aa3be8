package gateway

import (
	"crypto/sha256"
	"fmt"
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
		{"POST", "/v1/completions", nil, 401, `"message":"this is for callers`},
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

func TestCallersBehindAProxyAreTheirAddresses(t *testing.T) {
	document := filepath.Join(t.TempDir(), "access.json")
	said := `{"anonymous": ["infer"], "limits": {"requests_per_s": 0.000001, "burst": 1}, "trusted_proxies": ["127.0.0.1"]}`
	if err := os.WriteFile(document, []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{})
	g := startReady(t, "--access", document, "--backend", backend.Address)
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
