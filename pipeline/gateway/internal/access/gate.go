package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/failure"
)

// CallerHeader tells the server who asks. Callers cannot say it.
const CallerHeader = "X-Pipeline-Caller"

const (
	anonymousName = "anonymous"
	letIn         = "let in"
	bearer        = "bearer "
	lookEvery     = time.Second
)

// unknownCaller is who shows what nobody has.
var unknownCaller = &Caller{Name: "unknown"}

// Asked is a request, as far as it says who asks for what.
type Asked struct {
	Role         Role
	Action       string // for people: the method and the path, or gRPC's method
	Address      netip.Addr
	Tokens       []string // as callers show them
	Certificates []*x509.Certificate
	Bytes        int64 // of its body, as far as that is said
}

// Gate lets callers in.
type Gate struct {
	said      Document
	anonymous *Caller
	book      atomic.Pointer[book]
	issuer    *issuer // nil: no signed tokens
	meters    *meters
	places    *places // nil: any number
	audit     *audit
	observe   func(caller, outcome string)
	log       *slog.Logger
	files     []*followed
	now       func() time.Time
}

// New returns a gate that does as a document says; nil for none.
func New(path string, log *slog.Logger, observe func(caller, outcome string)) (*Gate, error) {
	if path == "" {
		return nil, nil
	}
	said, err := ReadDocument(path)
	if err != nil {
		return nil, err
	}
	g := &Gate{said: said, meters: newMeters(), places: newPlaces(said.FairShare), observe: observe, log: log, now: time.Now}
	g.anonymous = &Caller{Name: anonymousName, roles: said.Anonymous, limits: said.Limits}
	g.book.Store(&book{})
	if g.issuer, err = newIssuer(said.JWT, said.Limits); err != nil {
		return nil, fmt.Errorf("--access %s: %w", path, err)
	}
	if g.issuer != nil {
		err = errors.Join(err, g.follow("keys", said.JWT.JWKSFile, g.issuer.read))
	}
	if said.CallersFile != "" {
		err = errors.Join(err, g.follow("callers", said.CallersFile, g.readCallers))
	}
	if err != nil {
		return nil, err
	}
	g.audit, err = newAudit(said.AuditFile)
	return g, err
}

func (g *Gate) follow(what, path string, read func() error) error {
	found, err := follow(what, path, read)
	g.files = append(g.files, found)
	return err
}

// Said returns the document; of no gate one that says nothing.
func (g *Gate) Said() Document {
	if g == nil {
		return Document{}
	}
	return g.said
}

// readCallers reads the file of callers.
func (g *Gate) readCallers() error {
	found, err := readBook(g.said.CallersFile, g.said.Limits)
	if err == nil {
		g.book.Store(found)
	}
	return err
}

// Follow reads files again whenever they have changed. One that cannot be read changes nothing.
func (g *Gate) Follow(ctx context.Context) {
	if g == nil || len(g.files) == 0 {
		return
	}
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			g.look()
		case <-ctx.Done():
			return
		}
	}
}

// look reads the files that are others than before.
func (g *Gate) look() {
	for _, each := range g.files {
		isRead, err := each.look()
		if err != nil {
			g.log.Error(fmt.Sprintf("the %s are not changed: %v", each.what, err))
		} else if isRead {
			g.log.Info(fmt.Sprintf("the file of %s was read again", each.what))
		}
	}
}

// Let lets a request in, until its grant is done; it may wait for its caller's turn. Or it refuses it.
func (g *Gate) Let(ctx context.Context, asked *Asked) (*Grant, *failure.Error) {
	caller, refused := g.permit(asked)
	if refused != nil {
		return nil, refused
	}
	grant := &Grant{Caller: caller, key: caller.at(asked.Address)}
	if asked.Role == Open {
		g.note(asked, caller, letIn, nil)
		return grant, nil
	}
	if meter := g.meters.of(caller, asked.Address); meter != nil {
		counted, wait, isIn := meter.take(time.Now(), asked.Bytes)
		if !isIn {
			return nil, g.limit(asked, caller, wait)
		}
		grant.meter, grant.unpaid = meter, counted
	}
	if g.places != nil && asked.Role == Infer {
		if !g.places.take(ctx, grant.key) {
			grant.Done()
			return nil, g.limit(asked, caller, time.Second)
		}
		grant.places = g.places
	}
	g.note(asked, caller, letIn, nil)
	return grant, nil
}

func (g *Gate) limit(asked *Asked, caller *Caller, wait time.Duration) *failure.Error {
	refused := tooMuch(caller, wait)
	g.note(asked, caller, "limited", refused)
	return refused
}

// permit finds out who asks, if that caller may do it.
func (g *Gate) permit(asked *Asked) (*Caller, *failure.Error) {
	caller, refused := g.identify(asked)
	switch {
	case refused != nil:
		g.note(asked, unknownCaller, "unauthenticated", refused)
	case caller.May(asked.Role):
	case caller == g.anonymous:
		refused = unauthenticated("this is for callers that say who they are: send `authorization: Bearer TOKEN` or `x-api-key: TOKEN`")
		g.note(asked, caller, "unauthenticated", refused)
	default:
		text := fmt.Sprintf("caller %s may not do this: it takes the role %s", caller.Name, asked.Role)
		refused = &failure.Error{Status: http.StatusForbidden, ErrNo: failure.CodeForbidden, Text: text}
		g.note(asked, caller, "forbidden", refused)
	}
	return caller, refused
}

// identify finds out who asks.
func (g *Gate) identify(asked *Asked) (*Caller, *failure.Error) {
	known := g.book.Load()
	if len(asked.Tokens) > 1 {
		return nil, unauthenticated("the request has several credentials: send one")
	}
	for _, token := range asked.Tokens {
		// By its digest: so the time of a look-up reveals nothing about the known ones.
		if caller := known.byToken[sha256.Sum256([]byte(token))]; caller != nil && token != "" {
			return caller, nil
		}
		if g.issuer.isToken(token) {
			return g.identifySigned(token, known)
		}
		return nil, unauthenticated("nobody has the token that was sent")
	}
	if len(asked.Certificates) > 0 {
		for _, name := range namesOf(asked.Certificates[0]) {
			if caller := known.byCertificate[name]; caller != nil {
				return caller, nil
			}
		}
	}
	return g.anonymous, nil
}

// identifySigned finds out who shows a signed token: a caller whom the file names, or one by its claims
// alone.
func (g *Gate) identifySigned(token string, known *book) (*Caller, *failure.Error) {
	found, err := g.issuer.claimedBy(token, g.now())
	if err != nil {
		return nil, unauthenticated(err.Error())
	}
	if caller := known.bySubject[found.subject]; caller != nil {
		return caller, nil
	}
	return found.caller, nil
}

// note counts what became of a request, and writes down refusals and what admins do.
func (g *Gate) note(asked *Asked, caller *Caller, outcome string, refused *failure.Error) {
	g.observe(caller.inMetrics(), outcome)
	if refused != nil || asked.Role == Admin {
		g.audit.write(asked, caller.Name, outcome, refused)
	}
}

// namesOf returns the names of a certificate, the most certain first.
func namesOf(certificate *x509.Certificate) []string {
	names := append([]string{}, certificate.DNSNames...)
	for _, each := range certificate.URIs {
		names = append(names, each.String())
	}
	names = append(names, certificate.EmailAddresses...)
	if certificate.Subject.CommonName != "" {
		names = append(names, certificate.Subject.CommonName)
	}
	return names
}

// TokensOf returns the credentials of a request, by what `values` returns for the name of a header in lower
// case.
func TokensOf(values func(name string) []string) []string {
	tokens := append([]string{}, values("x-api-key")...)
	for _, value := range values("authorization") {
		if len(value) >= len(bearer) && strings.EqualFold(value[:len(bearer)], bearer) {
			value = strings.TrimSpace(value[len(bearer):])
		} // of another scheme, it is not a known token
		tokens = append(tokens, value)
	}
	return tokens
}

func unauthenticated(text string) *failure.Error {
	return &failure.Error{Status: http.StatusUnauthorized, ErrNo: failure.CodeUnauthenticated, Text: text}
}

func tooMuch(caller *Caller, wait time.Duration) *failure.Error {
	seconds := int(math.Ceil(min(wait.Seconds(), 3600)))
	text := fmt.Sprintf("caller %s asks for more than its share: come again in %d s", caller.Name, seconds)
	return &failure.Error{Status: http.StatusTooManyRequests, ErrNo: failure.CodeLimited, Text: text, RetryAfter: max(1, seconds)}
}
