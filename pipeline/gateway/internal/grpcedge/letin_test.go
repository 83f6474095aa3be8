package grpcedge

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/reserved"
)

// gateOf returns a gate for root, who may do all.
func gateOf(t *testing.T) *access.Gate {
	t.Helper()
	folder := t.TempDir()
	file, document := filepath.Join(folder, "callers.json"), filepath.Join(folder, "access.json")
	text := fmt.Sprintf(`{"callers": [{"name": "root", "roles": ["admin"], "tokens": ["sha256:%x"]}]}`, sha256.Sum256([]byte("r-token")))
	for path, text := range map[string]string{file: text, document: `{"callers_file": "` + file + `"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	gate, err := access.New(document, slog.New(slog.NewTextHandler(io.Discard, nil)), func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

func TestACallNeedsACallerWhoMay(t *testing.T) {
	said := greeting()
	said.Headers = true
	b := start(t, said, func(config *Config, _ *fixed) { config.Gate = gateOf(t) })
	refused := <-b.call(t.Context(), ask, "hello")
	if refused.code != codes.Unauthenticated || refused.trailers.Get(errNoKey)[0] != "3010" {
		t.Errorf("%v", refused)
	}
	root := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer r-token", reserved.Caller, "alice")
	ended := b.call(root, ask, "hello")
	asked := b.peer.AskedBytes()
	names := []string{}
	for at := 0; at < len(asked.Headers); at += 2 {
		if asked.Headers[at] == reserved.Caller {
			names = append(names, asked.Headers[at+1])
		}
	}
	if len(names) != 1 || names[0] != "root" {
		t.Errorf("the server received %q", names)
	}
	b.peer.AnswerBytes(asked.ID, []byte("well"))
	(<-ended).wants(t, codes.OK, "")
}

func TestAServerIsToldWhatCallersMaySet(t *testing.T) {
	said := greeting()
	said.Headers = true
	b := start(t, said, func(config *Config, _ *fixed) {
		config.Gate = gateOf(t)
		if err := config.Trust.Add([]string{"127.0.0.1"}, []string{"x-user"}); err != nil {
			t.Fatal(err)
		}
	})
	root := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "r-token", "x-user", "carol", "x-admin", "1", "x-forwarded-for", "192.0.2.1")
	ended := b.call(root, ask, "hello")
	asked := b.peer.AskedBytes()
	told := map[string]string{}
	for at := 0; at < len(asked.Headers); at += 2 {
		told[asked.Headers[at]] = asked.Headers[at+1]
	}
	if told["x-user"] != "carol" || told["x-admin"] != "" || told["x-api-key"] != "" || told[reserved.Caller] != "root" {
		t.Errorf("%v", told)
	}
	if asked.Caller != "192.0.2.1" {
		t.Errorf("%q", asked.Caller)
	}
	b.peer.AnswerBytes(asked.ID, []byte("well"))
	(<-ended).wants(t, codes.OK, "")
}

func TestHealthIsForEverybody(t *testing.T) {
	b := start(t, greeting(), func(config *Config, _ *fixed) { config.Gate = gateOf(t) })
	for method, code := range map[string]codes.Code{
		"/grpc.health.v1.Health/Check": codes.OK,
		"/grpc.health.v1.Health/List":  codes.OK,
		"/any.Other/Call":              codes.Unauthenticated,
	} {
		if got := <-b.call(t.Context(), method, ""); got.code != code {
			t.Errorf("%s: %v", method, got)
		}
	}
}

func TestAPublicPortKnowsNoMethodForAdmins(t *testing.T) {
	b := start(t, greeting(), func(config *Config, _ *fixed) { config.Side = access.PublicSide })
	(<-b.call(t.Context(), ask, "hello")).wants(t, codes.Unimplemented, textNoMethod)
	(<-b.call(t.Context(), "/grpc.health.v1.Health/Check", "")).wants(t, codes.OK, "")
}

func TestACallEndsBeforeGRPCResetsIt(t *testing.T) {
	for given, most := range map[time.Duration]time.Duration{time.Hour: mostEarly, 100 * time.Millisecond: 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), given)
		defer cancel()
		ending, cancel := endingEarly(ctx)
		defer cancel()
		deadline, _ := ctx.Deadline()
		end, _ := ending.Deadline()
		if early := deadline.Sub(end); early <= 0 || early > most {
			t.Errorf("%v before a deadline in %v", early, given)
		}
	}
	if ending, cancel := endingEarly(t.Context()); ending != t.Context() {
		cancel()
		t.Error("a call without a deadline has one")
	}
	if err := contextStatus(context.DeadlineExceeded); status.Convert(err).Message() != textLate {
		t.Error(err)
	}
}
