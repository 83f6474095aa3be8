package access

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return tokenPrefix + hex.EncodeToString(sum[:])
}

// callers is a file of alice, who infers, and of root, who may do all.
func callers(more string) string {
	return fmt.Sprintf(`{"callers": [
		{"name": "alice", "roles": ["infer"], "tokens": [%q], "certificates": ["alice.example"]},
		{"name": "root", "roles": ["infer", "observe", "admin"], "tokens": [%q]}%s]}`, hashed("a-token"), hashed("r-token"), more)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil { // another file, whatever its time and size
		t.Fatal(err)
	}
}

// door is a gate with its files.
type door struct {
	*Gate
	folder, callers string
	outcomes        []string
}

func doorOf(t *testing.T, said Document, text string) (*door, error) {
	t.Helper()
	d := &door{folder: t.TempDir()}
	d.callers = filepath.Join(d.folder, "callers.json")
	if text != "" {
		write(t, d.callers, text)
		said.CallersFile = d.callers
	}
	data, _ := json.Marshal(said)
	path := filepath.Join(d.folder, "access.json")
	write(t, path, string(data))
	gate, err := New(path, slog.New(slog.NewTextHandler(io.Discard, nil)), func(caller, outcome string) {
		d.outcomes = append(d.outcomes, caller+" "+outcome)
	})
	d.Gate = gate
	return d, err
}

func opened(t *testing.T, said Document, text string) *door {
	t.Helper()
	d, err := doorOf(t, said, text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// status returns that of a request with these credentials; 0: it is let in and over.
func (d *door) status(role Role, tokens ...string) int {
	_, done, refused := d.Let(&Asked{Role: role, Address: netip.MustParseAddr("192.0.2.1"), Tokens: tokens})
	if refused != nil {
		return refused.Status
	}
	done()
	return 0
}

func TestCallersMayDoWhatTheirRolesSay(t *testing.T) {
	d := opened(t, Document{Anonymous: []Role{}}, callers(""))
	for _, each := range []struct {
		role   Role
		tokens []string
		status int
	}{
		{Open, nil, 0},
		{Infer, nil, 401},
		{Infer, []string{"a-token"}, 0},
		{Observe, []string{"a-token"}, 403},
		{Admin, []string{"a-token"}, 403},
		{Admin, []string{"r-token"}, 0},
		{Infer, []string{"A-TOKEN"}, 401},
		{Infer, []string{""}, 401},
		{Open, []string{"wrong"}, 401},
		{Infer, []string{"a-token", "r-token"}, 401},
		{Infer, []string{hashed("a-token")}, 401},
	} {
		if got := d.status(each.role, each.tokens...); got != each.status {
			t.Errorf("%q by %q: %d, not %d", each.role, each.tokens, got, each.status)
		}
	}
}

func TestAWrongTokenIsNotAnonymous(t *testing.T) {
	d := opened(t, Document{Anonymous: []Role{Infer}}, callers(""))
	if got := d.status(Infer); got != 0 {
		t.Errorf("anonymous: %d", got)
	}
	if got := d.status(Infer, "wrong"); got != 401 {
		t.Errorf("wrong: %d", got)
	}
}

func TestACertificateNamesItsCaller(t *testing.T) {
	d := opened(t, Document{}, callers(""))
	for name, want := range map[string]string{"alice.example": "alice", "bob.example": "", "": ""} {
		for _, shown := range []*x509.Certificate{{DNSNames: []string{name}}, {Subject: pkix.Name{CommonName: name}}} {
			caller, _, refused := d.Let(&Asked{Role: Infer, Certificates: []*x509.Certificate{shown}})
			if want == "" && refused == nil || want != "" && (refused != nil || caller.Name != want) {
				t.Errorf("%q: %v, %v", name, caller, refused)
			}
		}
	}
}

func TestAChangedFileIsReadAgainAndABrokenOneIsNot(t *testing.T) {
	d := opened(t, Document{}, callers(""))
	write(t, d.callers, callers(`, {"name": "bob", "roles": ["infer"], "tokens": ["`+hashed("b-token")+`"]}`))
	d.look()
	if got := d.status(Infer, "b-token"); got != 0 {
		t.Errorf("bob, who is new: %d", got)
	}
	write(t, d.callers, `{"callers": [`)
	d.look()
	if got := d.status(Infer, "b-token"); got != 0 {
		t.Errorf("bob, behind a broken file: %d", got)
	}
	write(t, d.callers, `{"callers": []}`)
	d.look()
	if got := d.status(Infer, "b-token"); got != 401 {
		t.Errorf("bob, who is gone: %d", got)
	}
}

func TestACallerHasItsShare(t *testing.T) {
	d := opened(t, Document{Limits: Limits{RequestsPerS: 1e-6, Burst: 2}}, callers(`,
		{"name": "bob", "roles": ["infer"], "tokens": ["`+hashed("b-token")+`"], "limits": {"requests_per_s": 1e-6, "burst": 1}}`))
	got := []int{d.status(Infer, "a-token"), d.status(Infer, "a-token"), d.status(Infer, "a-token"), d.status(Infer, "b-token"), d.status(Infer, "b-token")}
	if want := []int{0, 0, 429, 0, 429}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", got, want)
	}
	_, _, refused := d.Let(&Asked{Role: Infer, Tokens: []string{"b-token"}})
	if refused.RetryAfter != 3600 {
		t.Errorf("Retry-After: %d", refused.RetryAfter)
	}
	if got := d.status(Open, "b-token"); got != 0 {
		t.Errorf("health: %d", got)
	}
}

func TestWhatIsInFlightIsBounded(t *testing.T) {
	d := opened(t, Document{Limits: Limits{InFlight: 1}}, callers(""))
	_, done, refused := d.Let(&Asked{Role: Infer, Tokens: []string{"a-token"}})
	if refused != nil {
		t.Fatal(refused)
	}
	if got := d.status(Infer, "a-token"); got != http.StatusTooManyRequests {
		t.Errorf("the second: %d", got)
	}
	done()
	if got := d.status(Infer, "a-token"); got != 0 {
		t.Errorf("behind the first: %d", got)
	}
}

func TestARefusedRequestTakesNoPlace(t *testing.T) {
	m := newMeter(Limits{RequestsPerS: 1e-6, Burst: 1, InFlight: 1})
	now := time.Unix(1, 0)
	for range 3 {
		if _, isIn := m.take(now); isIn {
			m.done()
		}
	}
	if m.inFlight.Load() != 0 {
		t.Errorf("%d are in flight", m.inFlight.Load())
	}
}

func TestAnonymousCallersAreTheirNetworks(t *testing.T) {
	all := newMeters()
	caller := &Caller{Name: anonymousName, limits: Limits{InFlight: 1}}
	of := func(address string) *meter { return all.of(caller, netip.MustParseAddr(address)) }
	if of("2001:db8::1") != of("2001:db8::2") {
		t.Error("two addresses of one /64 are two callers")
	}
	if of("192.0.2.1") == of("192.0.2.2") || of("192.0.2.1") != of("::ffff:192.0.2.1") {
		t.Error("an address of IPv4 is one caller, however it is written")
	}
	for number := range 3 * mostAddresses {
		all.of(caller, netip.AddrFrom4([4]byte{10, byte(number >> 16), byte(number >> 8), byte(number)}))
	}
	if count := len(all.young) + len(all.older); count > 2*mostAddresses {
		t.Errorf("%d meters", count)
	}
}

func TestFilesThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		`{"callers": [{"name": "a", "roles": ["boss"]}]}`:                                    "no role",
		`{"callers": [{"name": "a", "tokens": ["secret"]}]}`:                                 "no sha256:",
		`{"callers": [{"name": "a", "tokens": ["sha256:12"]}]}`:                              "no sha256:",
		`{"callers": [{"name": "a"}, {"name": "a"}]}`:                                        "twice",
		`{"callers": [{"name": "anonymous"}]}`:                                               "cannot be a name",
		`{"callers": [{"name": ""}]}`:                                                        "cannot be a name",
		`{"callers": [{"name": "a", "role": ["infer"]}]}`:                                    "unknown field",
		`{"callers": [{"name": "a", "limits": {"in_flight": -1}}]}`:                          "negative",
		`{"callers": []} {}`:                                                                 "more behind",
		`{"callers": [{"name":"a","certificates":["x"]},{"name":"b","certificates":["x"]}]}`: "another caller's",
	} {
		_, err := doorOf(t, Document{}, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), `"secret"`) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTheAuditHasRefusalsAndAdminsAndNoSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	d := opened(t, Document{AuditFile: path}, callers(""))
	d.status(Infer, "a-token") // is not of interest
	d.status(Admin, "r-token")
	d.status(Infer, "wrong-secret")
	for range 2 * mostLines {
		d.status(Admin, "a-token")
	}
	data, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) < mostLines || len(lines) > 2*mostLines {
		t.Errorf("%d lines", len(lines))
	}
	var first, second auditLine
	_ = json.Unmarshal([]byte(lines[0]), &first)
	_ = json.Unmarshal([]byte(lines[1]), &second)
	if first.Caller != "root" || first.Outcome != "let in" || second.Caller != unknownCaller.Name || second.Status != 401 {
		t.Errorf("%v\n%v", first, second)
	}
	for _, secret := range []string{"a-token", "r-token", "wrong-secret", "sha256"} {
		if strings.Contains(string(data), secret) {
			t.Errorf("%s is in the audit", secret)
		}
	}
	if got := d.outcomes[0]; got != "alice let in" {
		t.Errorf("%q", got)
	}
}

func TestCredentialsOfARequest(t *testing.T) {
	for _, each := range []struct {
		header http.Header
		want   string
	}{
		{http.Header{}, "[]"},
		{http.Header{"Authorization": {"Bearer t"}}, "[t]"},
		{http.Header{"Authorization": {"bearer  t "}}, "[t]"},
		{http.Header{"Authorization": {"Basic dDp0"}}, "[Basic dDp0]"},
		{http.Header{"Authorization": {""}}, "[]"},
		{http.Header{"X-Api-Key": {"k"}, "Authorization": {"Bearer t"}}, "[k t]"},
	} {
		if got := fmt.Sprint(TokensOf(each.header.Values)); got != each.want {
			t.Errorf("%v: %s, not %s", each.header, got, each.want)
		}
	}
}
