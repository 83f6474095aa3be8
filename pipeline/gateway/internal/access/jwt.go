package access

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// JWT says which signed tokens are accepted, and how to read the caller from them.
type JWT struct {
	JWKSFile   string            `json:"jwks_file"` // "": no tokens are accepted
	Issuer     string            `json:"issuer"`
	Audience   string            `json:"audience"`
	Algorithms []string          `json:"algorithms"` // empty: all algorithms of public keys
	NameClaim  string            `json:"name_claim"`
	RolesClaim string            `json:"roles_claim"` // "": tokens have no roles of their own
	Roles      map[string][]Role `json:"roles"`       // by value of that claim; empty: the values are roles
	LeewayS    float64           `json:"leeway_s"`
}

const (
	jwtPrefix       = "jwt:" // of the names of callers that are not in a file
	jwtLabel        = "jwt"  // the label of all of these in the metrics
	leastRSABits    = 2048
	mostLeewayS     = 3600
	mostKnownTokens = 4096 // whose signatures are not checked again; of twice as many the older half is dropped
)

// publicAlgorithms are the ones whose checking key cannot sign: neither HMAC nor `none`.
var publicAlgorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// tokenFault is why a token is not believed, for its caller.
type tokenFault string

func (f tokenFault) Error() string { return string(f) }

// issuer checks tokens that somebody else has signed.
type issuer struct {
	said       JWT
	algorithms []jose.SignatureAlgorithm
	limits     Limits // of callers whom no file names
	keys       atomic.Pointer[keyRing]
}

func newIssuer(said JWT, limits Limits) (*issuer, error) {
	if said.JWKSFile == "" {
		return nil, nil
	}
	if err := said.check(); err != nil {
		return nil, fmt.Errorf("jwt: %w", err)
	}
	i := &issuer{said: said, algorithms: publicAlgorithms, limits: limits}
	if len(said.Algorithms) > 0 {
		i.algorithms = nil
		for _, name := range said.Algorithms {
			i.algorithms = append(i.algorithms, jose.SignatureAlgorithm(name))
		}
	}
	return i, nil
}

func (j *JWT) check() error {
	if j.Issuer == "" || j.Audience == "" {
		return errors.New("give both issuer and audience: they say which tokens are for this server")
	}
	for _, name := range j.Algorithms {
		if !slices.Contains(publicAlgorithms, jose.SignatureAlgorithm(name)) {
			return fmt.Errorf("algorithms: %q is not one of %v", name, publicAlgorithms)
		}
	}
	for value, roles := range j.Roles {
		if err := checkRoles(roles); err != nil {
			return fmt.Errorf("roles: %q: %w", value, err)
		}
	}
	if !(j.LeewayS >= 0 && j.LeewayS <= mostLeewayS) {
		return fmt.Errorf("leeway_s %g is not in 0..%d", j.LeewayS, mostLeewayS)
	}
	return nil
}

// read reads the file of keys.
func (i *issuer) read() error {
	found, err := readKeys(i.said.JWKSFile)
	if err == nil {
		i.keys.Store(found)
	}
	return err
}

// isToken says whether a credential may be a signed token: three parts, the first of them JSON.
func (i *issuer) isToken(token string) bool {
	return i != nil && strings.HasPrefix(token, "eyJ") && strings.Count(token, ".") == 2
}

// claimed is what a token says that was believed.
type claimed struct {
	caller      *Caller
	subject     string
	from, until time.Time
}

// claimedBy returns what a token says. Its error is a tokenFault.
func (i *issuer) claimedBy(token string, now time.Time) (*claimed, error) {
	keys := i.keys.Load()
	sum := sha256.Sum256([]byte(token))
	if known := keys.known.get(sum); known != nil {
		return known, i.inTime(known, now)
	}
	signed, err := jwt.ParseSigned(token, i.algorithms)
	if err != nil {
		return nil, tokenFault("the token is no JWT that is signed by an algorithm which is allowed here")
	}
	key, err := keys.of(signed.Headers[0].KeyID)
	if err != nil {
		return nil, err
	}
	if key.Algorithm != "" && key.Algorithm != signed.Headers[0].Algorithm {
		return nil, tokenFault("the token's algorithm is not that of its key")
	}
	var usual jwt.Claims
	var all map[string]any
	if err := signed.Claims(key.Key, &usual, &all); err != nil {
		return nil, tokenFault("the token's signature is wrong")
	}
	found, err := i.understood(&usual, all)
	if err == nil {
		err = i.inTime(found, now)
	}
	if err != nil {
		return nil, err
	}
	keys.known.put(sum, found)
	return found, nil
}

// understood returns the claims of a token with a valid signature; its times are not checked yet.
func (i *issuer) understood(usual *jwt.Claims, all map[string]any) (*claimed, error) {
	name, _ := claimOf(all, i.said.NameClaim).(string)
	switch {
	case usual.Issuer != i.said.Issuer:
		return nil, tokenFault("the token is of another issuer")
	case !usual.Audience.Contains(i.said.Audience):
		return nil, tokenFault("the token is for another audience")
	case usual.Expiry == nil:
		return nil, tokenFault("the token does not say when it expires")
	case name == "" || len(name) > mostName || !isPrintable(name):
		return nil, tokenFault("the token's claim " + i.said.NameClaim + " is not a name")
	}
	found := &claimed{subject: name, until: usual.Expiry.Time()}
	if usual.NotBefore != nil {
		found.from = usual.NotBefore.Time()
	}
	found.caller = &Caller{Name: jwtPrefix + name, label: jwtLabel, roles: i.rolesOf(all), limits: i.limits}
	return found, nil
}

func (i *issuer) inTime(found *claimed, now time.Time) error {
	leeway := time.Duration(math.Round(i.said.LeewayS * float64(time.Second)))
	switch {
	case !now.Add(-leeway).Before(found.until):
		return tokenFault("the token has expired")
	case now.Add(leeway).Before(found.from):
		return tokenFault("the token is not valid yet")
	}
	return nil
}

// rolesOf returns the roles in the claims.
func (i *issuer) rolesOf(all map[string]any) (roles []Role) {
	if i.said.RolesClaim == "" {
		return nil
	}
	var values []string
	switch said := claimOf(all, i.said.RolesClaim).(type) {
	case string:
		values = strings.Fields(said)
	case []any:
		for _, each := range said {
			if text, isText := each.(string); isText {
				values = append(values, text)
			}
		}
	}
	for _, value := range values {
		if len(i.said.Roles) > 0 {
			roles = append(roles, i.said.Roles[value]...)
		} else if role := []Role{Role(value)}; checkRoles(role) == nil {
			roles = append(roles, role...)
		}
	}
	return roles
}

// claimOf returns a claim by its name, or by the names on the way to it with dots: realm_access.roles.
func claimOf(all map[string]any, name string) any {
	if found, isThere := all[name]; isThere {
		return found
	}
	first, rest, isDeep := strings.Cut(name, ".")
	inner, _ := all[first].(map[string]any)
	if !isDeep || inner == nil {
		return nil
	}
	return claimOf(inner, rest)
}

// keyRing is what a file of keys says, and the tokens that were checked with them.
type keyRing struct {
	byID  map[string]*jose.JSONWebKey
	known recent
}

// of returns the key of a name; "": the only one that there is.
func (r *keyRing) of(id string) (*jose.JSONWebKey, error) {
	if found := r.byID[id]; found != nil {
		return found, nil
	}
	if id == "" && len(r.byID) == 1 {
		for _, only := range r.byID {
			return only, nil
		}
	}
	return nil, tokenFault("the token is signed by a key that is not known here")
}

// readKeys reads a JSON Web Key Set. It skips keys that are not for signatures.
func readKeys(path string) (*keyRing, error) {
	var said struct {
		Keys []json.RawMessage `json:"keys"`
	}
	data, err := readFile(path)
	if err == nil {
		err = json.Unmarshal(data, &said)
	}
	if err != nil {
		return nil, fmt.Errorf("jwks_file %s: %w", path, err)
	}
	found := &keyRing{byID: map[string]*jose.JSONWebKey{}}
	for number, text := range said.Keys {
		key := &jose.JSONWebKey{}
		if err := key.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("jwks_file %s: key %d cannot be read", path, number)
		}
		if key.Use != "" && key.Use != "sig" {
			continue
		}
		if err := found.add(key); err != nil {
			return nil, fmt.Errorf("jwks_file %s: key %d (%q): %w", path, number, key.KeyID, err)
		}
	}
	if len(found.byID) == 0 {
		return nil, fmt.Errorf("jwks_file %s has no key for signatures", path)
	}
	return found, nil
}

func (r *keyRing) add(key *jose.JSONWebKey) error {
	if !key.IsPublic() {
		return errors.New("expected a public key, not a secret")
	}
	if found, isRSA := key.Key.(*rsa.PublicKey); isRSA && found.N.BitLen() < leastRSABits {
		return fmt.Errorf("it has %d bits: an RSA key needs %d", found.N.BitLen(), leastRSABits)
	}
	if r.byID[key.KeyID] != nil {
		return errors.New("its kid is there twice")
	}
	r.byID[key.KeyID] = key
	return nil
}

// recent keeps what tokens say that were checked lately.
type recent struct {
	lock         sync.Mutex
	young, older map[digest]*claimed
}

func (r *recent) get(sum digest) *claimed {
	r.lock.Lock()
	defer r.lock.Unlock()
	found := r.young[sum]
	if found == nil {
		if found = r.older[sum]; found != nil {
			r.keep(sum, found)
		}
	}
	return found
}

func (r *recent) put(sum digest, found *claimed) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.keep(sum, found)
}

func (r *recent) keep(sum digest, found *claimed) {
	if r.young == nil || len(r.young) >= mostKnownTokens {
		r.young, r.older = map[digest]*claimed{}, r.young
	}
	r.young[sum] = found
}
