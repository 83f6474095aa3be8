package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/failure"
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

// status returns the status of a request with these credentials; 0: it was admitted and has ended.
func (d *door) status(role Role, tokens ...string) int {
	grant, refused := d.Let(context.Background(), &Asked{Role: role, Address: netip.MustParseAddr("192.0.2.1"), Tokens: tokens})
	if refused != nil {
		return refused.Status
	}
	grant.Done()
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
			grant, refused := d.Let(t.Context(), &Asked{Role: Infer, Certificates: []*x509.Certificate{shown}})
			if want == "" && refused == nil || want != "" && (refused != nil || grant.Caller.Name != want) {
				t.Errorf("%q: %v, %v", name, grant, refused)
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
	_, refused := d.Let(t.Context(), &Asked{Role: Infer, Tokens: []string{"b-token"}})
	if refused.RetryAfter != 3600 {
		t.Errorf("Retry-After: %d", refused.RetryAfter)
	}
	if got := d.status(Open, "b-token"); got != 0 {
		t.Errorf("health: %d", got)
	}
}

func TestWhatIsInFlightIsBounded(t *testing.T) {
	d := opened(t, Document{Limits: Limits{InFlight: 1}}, callers(""))
	grant, refused := d.Let(t.Context(), &Asked{Role: Infer, Tokens: []string{"a-token"}})
	if refused != nil {
		t.Fatal(refused)
	}
	if got := d.status(Infer, "a-token"); got != http.StatusTooManyRequests {
		t.Errorf("the second: %d", got)
	}
	grant.Done()
	if got := d.status(Infer, "a-token"); got != 0 {
		t.Errorf("behind the first: %d", got)
	}
}

func TestARefusedRequestTakesNoPlace(t *testing.T) {
	m := newMeter(Limits{RequestsPerS: 1e-6, Burst: 1, InFlight: 1})
	now := time.Unix(1, 0)
	for range 3 {
		if _, _, isIn := m.take(now, 0); isIn {
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
		`{"callers": [{"name": "a", "roles": ["boss"]}]}`:                                    "not a role",
		`{"callers": [{"name": "a", "tokens": ["secret"]}]}`:                                 "expected a token as sha256:",
		`{"callers": [{"name": "a", "tokens": ["sha256:12"]}]}`:                              "expected a token as sha256:",
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

func TestACallersBytesHaveARate(t *testing.T) {
	m := newMeter(Limits{BytesPerS: 1000, BytesBurst: 5000})
	now := time.Unix(1000, 0)
	for _, each := range []struct {
		after   time.Duration
		bytes   int64
		counted int
		wait    time.Duration
	}{
		{0, 4000, 4000, 0},
		{0, 4000, 0, 3 * time.Second},
		{0, -1, 1, 0}, // of a length that is not known: one at least
		{5 * time.Second, 1 << 40, 5000, 0},
		{5 * time.Second, 0, 0, time.Millisecond},
	} {
		counted, wait, isIn := m.take(now.Add(each.after), each.bytes)
		if counted != each.counted || isIn != (each.wait == 0) || wait.Round(time.Millisecond) != each.wait {
			t.Errorf("%+v: %d, %v, %v", each, counted, wait, isIn)
		}
	}
	if owed := m.charge(now.Add(5*time.Second), 20_000); owed != 20*time.Second {
		t.Errorf("%v", owed)
	}
	if _, wait, isIn := m.take(now.Add(10*time.Second), 0); isIn || wait < 14*time.Second {
		t.Errorf("a caller over its limit is admitted: %v", wait)
	}
}

func TestWhatIsPaidForIsNotCountedTwice(t *testing.T) {
	grant := &Grant{meter: newMeter(Limits{BytesPerS: 1e-3, BytesBurst: 100}), unpaid: 60}
	grant.meter.charge(time.Now(), 60) // as it came in
	if wait := grant.Received(50) + grant.Received(10); wait != 0 {
		t.Errorf("%v", wait)
	}
	if grant.Received(40); grant.Sent(1) < time.Minute {
		t.Error("what is beyond the burst has to wait")
	}
	var none *Grant
	if none.Received(1)+none.Sent(1) != 0 || none.Budget() != nil {
		t.Error("of no gate there are no limits")
	}
	none.Done()
}

func TestPlacesAreSharedAmongCallers(t *testing.T) {
	d := opened(t, Document{FairShare: FairShare{InFlight: 1, Queue: 1, MaxWaitS: 60}}, callers(""))
	ask := func(ctx context.Context) (*Grant, *failure.Error) {
		return d.Let(ctx, &Asked{Role: Infer, Tokens: []string{"a-token"}})
	}
	first, refused := ask(t.Context())
	if refused != nil {
		t.Fatal(refused)
	}
	if got := d.status(Admin, "r-token"); got != 0 {
		t.Errorf("a request without inference takes a place: %d", got)
	}
	second := make(chan *failure.Error, 1)
	go func() {
		grant, refused := ask(context.Background())
		if refused == nil {
			grant.Done()
		}
		second <- refused
	}()
	for !d.isWaiting() {
		time.Sleep(time.Millisecond)
	}
	if _, refused := ask(t.Context()); refused == nil || refused.Status != 429 {
		t.Errorf("the queue is full: %v", refused)
	}
	first.Done()
	if refused := <-second; refused != nil {
		t.Error(refused)
	}
	third, _ := ask(t.Context())
	left, leave := context.WithCancel(t.Context())
	leave()
	if _, refused := ask(left); refused == nil {
		t.Error("who has left has a place")
	}
	third.Done()
	if got := d.status(Infer, "a-token"); got != 0 {
		t.Errorf("behind who has left: %d", got)
	}
}

// isWaiting says whether somebody waits for a place.
func (d *door) isWaiting() bool {
	d.places.lock.Lock()
	defer d.places.lock.Unlock()
	return d.places.queue.Waiting() > 0
}

func TestConnectionsOfAnAddress(t *testing.T) {
	trust := &config.Trust{}
	if err := trust.Add([]string{"192.0.2.7"}, nil); err != nil {
		t.Fatal(err)
	}
	all := NewAddresses(2, trust)
	from := func(address string) net.Conn {
		return fromConn{address: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}
	}
	leave, isIn := all.Enter(from("[2001:db8::1]:1"))
	_, isSecondIn := all.Enter(from("[2001:db8::2]:1"))
	_, isThirdIn := all.Enter(from("[2001:db8::3]:1"))
	if !isIn || !isSecondIn || isThirdIn {
		t.Errorf("%v %v %v", isIn, isSecondIn, isThirdIn)
	}
	leave()
	leave() // once is enough
	_, isIn = all.Enter(from("[2001:db8::4]:1"))
	_, isOneMoreIn := all.Enter(from("[2001:db8::5]:1"))
	if !isIn || isOneMoreIn {
		t.Errorf("%v %v", isIn, isOneMoreIn)
	}
	for range 5 {
		if _, isIn := all.Enter(from("192.0.2.7:1")); !isIn {
			t.Error("a trusted proxy has a limit")
		}
	}
	if _, isIn := NewAddresses(0, trust).Enter(from("192.0.2.1:1")); !isIn {
		t.Error("without a limit")
	}
}

// fromConn is a connection from an address.
type fromConn struct {
	net.Conn
	address net.Addr
}

func (c fromConn) RemoteAddr() net.Addr { return c.address }
