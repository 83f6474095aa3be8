package access

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

var atNoon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// signer signs tokens, as an issuer does.
type signer struct {
	id  string
	alg jose.SignatureAlgorithm
	key crypto.Signer
}

func newSigner(t *testing.T, id string, alg jose.SignatureAlgorithm) *signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch alg {
	case jose.EdDSA:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case jose.RS256, jose.PS256:
		key, err = rsa.GenerateKey(rand.Reader, leastRSABits)
	default:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &signer{id, alg, key}
}

// public is the signer's entry in a file of keys.
func (s *signer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.key.Public(), KeyID: s.id, Use: "sig"}
}

func (s *signer) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	return signed(t, jose.SigningKey{Algorithm: s.alg, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, claims)
}

func signed(t *testing.T, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	made, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(made).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// claims are good ones, but for what is said otherwise.
func claims(more ...any) map[string]any {
	all := map[string]any{
		"iss": "https://issuer.example", "aud": []string{"other", "pipeline"}, "sub": "carol",
		"exp": atNoon.Add(time.Hour).Unix(), "nbf": atNoon.Add(-time.Hour).Unix(), "roles": []string{"infer", "unknown"},
	}
	for at := 0; at < len(more); at += 2 {
		if name := more[at].(string); more[at+1] == nil {
			delete(all, name)
		} else {
			all[name] = more[at+1]
		}
	}
	return all
}

func keysOf(t *testing.T, of ...*signer) string {
	t.Helper()
	set := jose.JSONWebKeySet{}
	for _, each := range of {
		set.Keys = append(set.Keys, each.public())
	}
	data, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func usualJWT() JWT {
	return JWT{Issuer: "https://issuer.example", Audience: "pipeline", NameClaim: "sub", RolesClaim: "roles", LeewayS: 30}
}

// signedDoor returns a gate that accepts the tokens of signers, at noon, and its file of keys.
func signedDoor(t *testing.T, said JWT, file string, of ...*signer) (*door, string) {
	t.Helper()
	said.JWKSFile = filepath.Join(t.TempDir(), "keys.json")
	write(t, said.JWKSFile, keysOf(t, of...))
	d := opened(t, Document{Anonymous: []Role{}, JWT: said, Limits: Limits{RequestsPerS: 1e-6, Burst: 100}}, file)
	d.now = func() time.Time { return atNoon }
	return d, said.JWKSFile
}

func TestASignedTokenNamesItsCaller(t *testing.T) {
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.EdDSA} {
		one := newSigner(t, "one", alg)
		d, _ := signedDoor(t, usualJWT(), "", one)
		grant, refused := d.Let(t.Context(), &Asked{Role: Infer, Tokens: []string{one.sign(t, claims())}})
		if refused != nil || grant.Caller.Name != "jwt:carol" {
			t.Fatalf("%s: %v %v", alg, grant, refused)
		}
		grant.Done()
		if got := d.status(Admin, one.sign(t, claims())); got != 403 {
			t.Errorf("%s: another role: %d", alg, got)
		}
		if got := d.outcomes[0]; got != "jwt let in" { // not each subject is a name in the metrics
			t.Errorf("%q", got)
		}
	}
}

func TestATokenThatIsNotBelieved(t *testing.T) {
	one, other, forged := newSigner(t, "one", jose.ES256), newSigner(t, "two", jose.ES256), newSigner(t, "one", jose.ES256)
	rsaOne := newSigner(t, "rsa", jose.RS256)
	d, _ := signedDoor(t, usualJWT(), "", one, rsaOne)
	good := one.sign(t, claims())
	half := strings.Split(good, ".")
	pem := []byte(keysOf(t, rsaOne)) // what an attacker knows of the key
	for what, token := range map[string]string{
		"has expired":             one.sign(t, claims("exp", atNoon.Add(-30*time.Second).Unix())),
		"is not valid yet":        one.sign(t, claims("nbf", atNoon.Add(time.Minute).Unix())),
		"is for another audie":    one.sign(t, claims("aud", "somebody else")),
		"is of another issuer":    one.sign(t, claims("iss", "https://issuer.example.evil")),
		"when it expires":         one.sign(t, claims("exp", nil)),
		"claim sub is not a name": one.sign(t, claims("sub", "a b")),
		"key that is not known":   other.sign(t, claims()),
		"signature is wrong":      forged.sign(t, claims()),
		"signed by an algorithm": signed(t, jose.SigningKey{
			Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: pem, KeyID: "rsa"}}, claims()),
		"no JWT that is signed": "eyJhbGciOiJub25lIn0." + half[1] + ".",
	} {
		_, refused := d.Let(t.Context(), &Asked{Role: Infer, Tokens: []string{token}})
		if refused == nil || refused.Status != 401 || !strings.Contains(refused.Text, what) {
			t.Errorf("%s: %v", what, refused)
		}
	}
	for _, token := range []string{half[0] + "." + half[1] + ".", "eyJ.." + half[2], good + "a", strings.ToUpper(good), "eyJ.eyJ.eyJ"} {
		if got := d.status(Infer, token); got != 401 {
			t.Errorf("%q: %d", token, got)
		}
	}
	if got := d.status(Infer, good); got != 0 {
		t.Errorf("the good one: %d", got)
	}
}

func TestAnAlgorithmThatIsNotAllowed(t *testing.T) {
	one := newSigner(t, "one", jose.ES256)
	said := usualJWT()
	said.Algorithms = []string{"RS256"}
	d, _ := signedDoor(t, said, "", one)
	if got := d.status(Infer, one.sign(t, claims())); got != 401 {
		t.Errorf("%d", got)
	}
}

func TestATokenThatWasBelievedExpires(t *testing.T) {
	one := newSigner(t, "one", jose.ES256)
	d, _ := signedDoor(t, usualJWT(), "", one)
	token := one.sign(t, claims())
	for _, each := range []struct {
		after  time.Duration
		status int
	}{{0, 0}, {time.Hour + 29*time.Second, 0}, {time.Hour + 30*time.Second, 401}} {
		d.now = func() time.Time { return atNoon.Add(each.after) }
		if got := d.status(Infer, token); got != each.status {
			t.Errorf("after %v: %d", each.after, got)
		}
	}
}

func TestKeysThatAreRotated(t *testing.T) {
	one, two := newSigner(t, "one", jose.ES256), newSigner(t, "two", jose.ES256)
	d, path := signedDoor(t, usualJWT(), "", one)
	before, behind := one.sign(t, claims()), two.sign(t, claims())
	statuses := func() string { return fmt.Sprint(d.status(Infer, before), d.status(Infer, behind)) }
	if got := statuses(); got != "0 401" {
		t.Errorf("before: %s", got)
	}
	write(t, path, keysOf(t, one, two))
	d.look()
	if got := statuses(); got != "0 0" {
		t.Errorf("both: %s", got)
	}
	write(t, path, `{"keys": []}`)
	d.look()
	if got := statuses(); got != "0 0" {
		t.Errorf("a file without keys: %s", got)
	}
	write(t, path, keysOf(t, two))
	d.look()
	if got := statuses(); got != "401 0" {
		t.Errorf("behind: %s", got)
	}
}

func TestRolesByClaimsAndByTheFileOfCallers(t *testing.T) {
	one := newSigner(t, "one", jose.ES256)
	said := usualJWT()
	said.RolesClaim, said.Roles = "realm.groups", map[string][]Role{"ops": {Observe, Admin}}
	file := `{"callers": [{"name": "eve", "roles": ["infer"], "subjects": ["eve@example"]}]}`
	d, _ := signedDoor(t, said, file, one)
	for _, each := range []struct {
		role   Role
		claims map[string]any
		status int
	}{
		{Admin, claims("realm", map[string]any{"groups": "dev ops"}), 0},
		{Infer, claims("realm", map[string]any{"groups": "dev ops"}), 403},
		{Admin, claims("realm", map[string]any{"groups": []any{"admin"}}), 403},
		{Admin, claims("realm.groups", []any{"ops"}), 0},
		{Infer, claims("sub", "eve@example"), 0},
		{Admin, claims("sub", "eve@example", "realm.groups", "ops"), 403}, // the file has the last word
	} {
		if got := d.status(each.role, one.sign(t, each.claims)); got != each.status {
			t.Errorf("%s of %v: %d", each.role, each.claims, got)
		}
	}
	if got := d.outcomes[4]; got != "eve let in" {
		t.Errorf("%q", got)
	}
}

func TestFilesOfKeysThatCannotBe(t *testing.T) {
	one := newSigner(t, "one", jose.ES256)
	private, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: one.key, KeyID: "one"}}})
	weak, _ := rsa.GenerateKey(rand.Reader, 1024)
	short, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: weak.Public(), KeyID: "one"}}})
	for text, want := range map[string]string{
		string(private): "expected a public key",
		string(short):   "1024 bits",
		`{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}`: "expected a public key",
		`{"keys": []}`:      "no key for signatures",
		`{"keys": [{}]}`:    "cannot be read",
		`[`:                 "jwks_file",
		keysOf(t, one, one): "twice",
	} {
		path := filepath.Join(t.TempDir(), "keys.json")
		write(t, path, text)
		if _, err := readKeys(path); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestWhatOfSignedTokensCannotBeAsked(t *testing.T) {
	for want, change := range map[string]func(*JWT){
		"give both":     func(said *JWT) { said.Audience = "" },
		"is not one of": func(said *JWT) { said.Algorithms = []string{"HS256"} },
		"not a role":    func(said *JWT) { said.Roles = map[string][]Role{"x": {"boss"}} },
		"not in 0..":    func(said *JWT) { said.LeewayS = -1 },
	} {
		said := usualJWT()
		said.JWKSFile = "keys.json"
		change(&said)
		if _, err := newIssuer(said, Limits{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestTokensThatAreKnownAreNotTooMany(t *testing.T) {
	var known recent
	for number := range 3 * mostKnownTokens {
		known.put(digest{byte(number), byte(number >> 8)}, &claimed{})
	}
	if count := len(known.young) + len(known.older); count > 2*mostKnownTokens {
		t.Errorf("%d", count)
	}
}
