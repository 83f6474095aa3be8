// Package access identifies callers, and checks their roles and limits.
package access

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"pipeline/gateway/internal/memory"
)

// Document is the section `access` of config.yml, as JSON: pipeline/config/access.py.
type Document struct {
	CallersFile string `json:"callers_file"` // "": there are none
	Anonymous   []Role `json:"anonymous"`    // of who shows no credential
	Limits      Limits `json:"limits"`       // of callers that have none of their own
	AuditFile   string `json:"audit_file"`   // "": none
	JWT         JWT    `json:"jwt"`

	FairShare FairShare `json:"fair_share"`

	ConnectionsPerAddress int `json:"connections_per_address"` // 0: any number

	TrustedProxies []string `json:"trusted_proxies"` // for config.Trust, as the next one
	Metadata       []string `json:"metadata"`
}

// Limits are those of one caller; 0: none.
type Limits struct {
	RequestsPerS float64 `json:"requests_per_s"`
	Burst        int     `json:"burst"` // that may come at once; 0: those of a second
	InFlight     int     `json:"in_flight"`

	BytesPerS     float64 `json:"bytes_per_s"`    // of bodies, of requests and answers
	BytesBurst    int     `json:"bytes_burst"`    // that may come at once; 0: those of a second
	BufferedBytes int64   `json:"buffered_bytes"` // that are held of requests and answers
}

// Role is a part of what may be done.
type Role string

// The roles; each is for itself.
const (
	Open    Role = ""        // for everybody: health
	Infer   Role = "infer"   // inference, and what its callers need to know
	Observe Role = "observe" // the page, metrics, statistics
	Admin   Role = "admin"   // models, traces, shared memory
)

// callersDocument is the file of callers.
type callersDocument struct {
	Callers []struct {
		Name         string   `json:"name"`
		Roles        []Role   `json:"roles"`
		Tokens       []string `json:"tokens"`
		Certificates []string `json:"certificates"`
		Subjects     []string `json:"subjects"` // of signed tokens
		Limits       *Limits  `json:"limits"`
	} `json:"callers"`
}

// Caller is somebody whom the file names, or Anonymous.
type Caller struct {
	Name   string
	label  string // in the metrics; "": its name
	roles  []Role
	limits Limits
}

// May says whether the caller has a role.
func (c *Caller) May(role Role) bool { return role == Open || slices.Contains(c.roles, role) }

// inMetrics returns what the metrics call the caller: those whom no file names have one name there, as they
// may be many.
func (c *Caller) inMetrics() string {
	if c.label != "" {
		return c.label
	}
	return c.Name
}

// digest is that of a token.
type digest [sha256.Size]byte

// book is what the file of callers says. It is made once and never changed.
type book struct {
	byToken       map[digest]*Caller
	byCertificate map[string]*Caller
	bySubject     map[string]*Caller
}

const (
	tokenPrefix = "sha256:"
	mostFile    = 16 << 20
	mostName    = 256

	leastBufferedBytes = 2 * memory.RequestBytes
)

// ReadDocument returns what a file with the section says.
func ReadDocument(path string) (found Document, err error) {
	if err := readJSON(path, &found); err != nil {
		return found, fmt.Errorf("--access: %w", err)
	}
	if err := checkRoles(found.Anonymous); err != nil {
		return found, fmt.Errorf("--access %s: anonymous: %w", path, err)
	}
	if err := found.Limits.check(); err != nil {
		return found, fmt.Errorf("--access %s: limits: %w", path, err)
	}
	if said := found.FairShare; said.InFlight < 0 || said.Queue < 0 || !(said.MaxWaitS >= 0) || found.ConnectionsPerAddress < 0 {
		return found, fmt.Errorf("--access %s: fair_share, connections_per_address: numbers must not be negative", path)
	}
	return found, nil
}

// readBook returns the content of a file of callers; limits apply to callers without their own.
func readBook(path string, limits Limits) (*book, error) {
	var said callersDocument
	if err := readJSON(path, &said); err != nil {
		return nil, fmt.Errorf("callers_file: %w", err)
	}
	found := &book{map[digest]*Caller{}, map[string]*Caller{}, map[string]*Caller{}}
	names := map[string]bool{}
	for _, each := range said.Callers {
		caller := &Caller{Name: each.Name, roles: each.Roles, limits: limits}
		if each.Limits != nil {
			caller.limits = *each.Limits
		}
		err := errors.Join(checkName(each.Name, names), checkRoles(each.Roles), caller.limits.check())
		for _, text := range each.Tokens {
			err = errors.Join(err, found.addToken(text, caller))
		}
		err = errors.Join(err, addNames(found.byCertificate, "certificate", each.Certificates, caller))
		err = errors.Join(err, addNames(found.bySubject, "subject", each.Subjects, caller))
		if err != nil {
			return nil, fmt.Errorf("callers_file %s: caller %q: %w", path, each.Name, err)
		}
	}
	return found, nil
}

func addNames(to map[string]*Caller, what string, names []string, caller *Caller) error {
	for _, name := range names {
		if to[name] != nil {
			return fmt.Errorf("%s %q is there twice, or also another caller's", what, name)
		}
		to[name] = caller
	}
	return nil
}

func (b *book) addToken(text string, caller *Caller) error {
	var sum digest
	hexed, isKnown := strings.CutPrefix(text, tokenPrefix)
	if size, err := hex.Decode(sum[:], []byte(hexed)[:min(len(hexed), 2*len(sum))]); err != nil || !isKnown || size != len(sum) || len(hexed) != 2*len(sum) {
		return errors.New("expected a token as sha256: and 64 hexadecimal digits; `python -m pipeline callers add` writes them")
	}
	if b.byToken[sum] != nil {
		return errors.New("a token is there twice")
	}
	b.byToken[sum] = caller
	return nil
}

func checkName(name string, taken map[string]bool) error {
	switch {
	case name == "" || len(name) > mostName || name == anonymousName || strings.HasPrefix(name, jwtPrefix) || !isPrintable(name):
		return errors.New("this cannot be a name")
	case taken[name]:
		return errors.New("it is there twice")
	}
	taken[name] = true
	return nil
}

func isPrintable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

func checkRoles(roles []Role) error {
	for _, role := range roles {
		if role != Infer && role != Observe && role != Admin {
			return fmt.Errorf("%q is not a role: expected infer, observe or admin", role)
		}
	}
	return nil
}

func (l Limits) check() error {
	if !(l.RequestsPerS >= 0 && l.BytesPerS >= 0) || l.Burst < 0 || l.InFlight < 0 || l.BytesBurst < 0 || l.BufferedBytes < 0 {
		return errors.New("limits must not be negative; 0: none")
	}
	if l.BufferedBytes != 0 && l.BufferedBytes < leastBufferedBytes {
		return fmt.Errorf("buffered_bytes %d is less than %d, which two requests take", l.BufferedBytes, leastBufferedBytes)
	}
	return nil
}

// readJSON reads a file, of which it takes no field that is not there.
func readJSON(path string, into any) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if decoder.More() {
		return fmt.Errorf("%s: there is more behind the JSON", path)
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, mostFile+1))
	if err == nil && len(data) > mostFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, mostFile)
	}
	return data, err
}
