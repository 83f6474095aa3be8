package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"pipeline/gateway/internal/failure"
)

// CallerHeader tells the server who asks. Callers cannot say it.
const CallerHeader = "X-Pipeline-Caller"

const (
	anonymousName = "anonymous"
	unknownName   = "unknown" // of who shows what nobody has
	bearer        = "bearer "
	lookEvery     = time.Second
)

// Asked is a request, as far as it says who asks for what.
type Asked struct {
	Role         Role
	Action       string // for people: the method and the path, or gRPC's method
	Address      netip.Addr
	Tokens       []string // as callers show them
	Certificates []*x509.Certificate
}

// Gate lets callers in.
type Gate struct {
	said      Document
	anonymous *Caller
	book      atomic.Pointer[book]
	meters    *meters
	audit     *audit
	observe   func(caller, outcome string)
	log       *slog.Logger
	seen      os.FileInfo
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
	g := &Gate{said: said, meters: newMeters(), observe: observe, log: log}
	g.anonymous = &Caller{anonymousName, said.Anonymous, said.Limits}
	g.book.Store(&book{})
	if said.CallersFile != "" {
		if err := g.read(); err != nil {
			return nil, err
		}
	}
	g.audit, err = newAudit(said.AuditFile)
	return g, err
}

// read reads the file of callers.
func (g *Gate) read() error {
	seen, err := os.Stat(g.said.CallersFile)
	if err != nil {
		return fmt.Errorf("callers_file: %w", err)
	}
	g.seen = seen
	found, err := readBook(g.said.CallersFile, g.said.Limits)
	if err != nil {
		return err
	}
	g.book.Store(found)
	return nil
}

// Follow reads the file of callers again whenever it has changed. One that cannot be read changes nothing.
func (g *Gate) Follow(ctx context.Context) {
	if g == nil || g.said.CallersFile == "" {
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

// look reads the file of callers if it is another one than before.
func (g *Gate) look() {
	now, err := os.Stat(g.said.CallersFile)
	if err == nil && os.SameFile(now, g.seen) && now.ModTime().Equal(g.seen.ModTime()) && now.Size() == g.seen.Size() {
		return
	}
	if err == nil {
		err = g.read()
	}
	if err != nil {
		g.log.Error(fmt.Sprintf("the callers stay as they were: %v", err))
		return
	}
	g.log.Info("the file of callers was read again")
}

// Let lets a request in, until done is called, and says whose it is. Or it refuses it.
func (g *Gate) Let(asked *Asked) (caller *Caller, done func(), refused *failure.Error) {
	caller, refused = g.identify(asked)
	switch {
	case refused != nil:
		g.note(asked, unknownName, "unauthenticated", refused)
		return nil, nil, refused
	case !caller.May(asked.Role) && caller == g.anonymous:
		refused = unauthenticated("this is for callers that say who they are: send `authorization: Bearer TOKEN` or `x-api-key: TOKEN`")
		g.note(asked, caller.Name, "unauthenticated", refused)
		return nil, nil, refused
	case !caller.May(asked.Role):
		text := fmt.Sprintf("caller %s may not do this: it takes the role %s", caller.Name, asked.Role)
		refused = &failure.Error{Status: http.StatusForbidden, ErrNo: failure.CodeForbidden, Text: text}
		g.note(asked, caller.Name, "forbidden", refused)
		return nil, nil, refused
	}
	done = func() {}
	if meter := g.meters.of(caller, asked.Address); meter != nil && asked.Role != Open {
		wait, isIn := meter.take(time.Now())
		if !isIn {
			refused = tooMuch(caller, wait)
			g.note(asked, caller.Name, "limited", refused)
			return nil, nil, refused
		}
		done = meter.done
	}
	g.note(asked, caller.Name, "let in", nil)
	return caller, done, nil
}

// identify finds out who asks.
func (g *Gate) identify(asked *Asked) (*Caller, *failure.Error) {
	known := g.book.Load()
	if len(asked.Tokens) > 1 {
		return nil, unauthenticated("the request has several credentials: send one")
	}
	for _, token := range asked.Tokens {
		// By its digest: how long that takes says nothing of those that are known.
		if caller := known.byToken[sha256.Sum256([]byte(token))]; caller != nil && token != "" {
			return caller, nil
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

// note counts what became of a request, and writes down refusals and what admins do.
func (g *Gate) note(asked *Asked, caller, outcome string, refused *failure.Error) {
	g.observe(caller, outcome)
	if refused != nil || asked.Role == Admin {
		g.audit.write(asked, caller, outcome, refused)
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

// TokensOf returns the credentials of a request, by what `values` returns for the name of a header in lower case.
func TokensOf(values func(name string) []string) []string {
	tokens := append([]string{}, values("x-api-key")...)
	for _, value := range values("authorization") {
		if len(value) >= len(bearer) && strings.EqualFold(value[:len(bearer)], bearer) {
			value = strings.TrimSpace(value[len(bearer):])
		} // of another scheme, it is nobody's token
		tokens = append(tokens, value)
	}
	return tokens
}

// AddressOf returns the address of a peer; the zero one is that of all whose address is not known.
func AddressOf(peer string) netip.Addr {
	found, err := netip.ParseAddrPort(peer)
	if err != nil {
		return netip.IPv6Unspecified()
	}
	return found.Addr()
}

func unauthenticated(text string) *failure.Error {
	return &failure.Error{Status: http.StatusUnauthorized, ErrNo: failure.CodeUnauthenticated, Text: text}
}

func tooMuch(caller *Caller, wait time.Duration) *failure.Error {
	seconds := int(math.Ceil(min(wait.Seconds(), 3600)))
	text := fmt.Sprintf("caller %s asks for more than its share: come again in %d s", caller.Name, seconds)
	return &failure.Error{Status: http.StatusTooManyRequests, ErrNo: failure.CodeLimited, Text: text, RetryAfter: max(1, seconds)}
}
