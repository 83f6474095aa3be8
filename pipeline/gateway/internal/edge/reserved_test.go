package edge

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/reserved"
)

// heard returns the headers that a server receives, by names in lower case, for each protocol of this edge.
func heard(t *testing.T, header http.Header) map[string]map[string][]string {
	t.Helper()
	request := httptest.NewRequest(http.MethodPost, "/svc/prediction", http.NoBody)
	request.Header = header
	x := &exchange{cfg: &config.Config{}, request: request, grant: &access.Grant{Caller: &access.Caller{Name: "alice"}}}
	dropForbidden(request.Header, &x.cfg.Trust)
	dropCredentials(request.Header, &x.cfg.Trust)
	ways := map[string]map[string][]string{"link": x.All(), "gRPC": x.Metadata()}
	proxy := newPassthrough(nil, slog.New(slog.DiscardHandler)).proxy
	proxy.ModifyResponse = nil
	proxy.Transport = roundTrip(func(out *http.Request) (*http.Response, error) {
		ways["HTTP"] = out.Header
		for name := range out.Trailer {
			t.Errorf("the trailer %s is passed on", name)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: out}, nil
	})
	proxy.ServeHTTP(httptest.NewRecorder(), request.WithContext(withExchange(t.Context(), x)))
	for way, told := range ways {
		small := map[string][]string{}
		for name, values := range told {
			small[strings.ToLower(name)] = values
		}
		ways[way] = small
	}
	return ways
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestNoCallerSaysWhatTheGatewaySays(t *testing.T) {
	names := []string{"x-pipeline-roles", "x-forwarded-port"} // of the prefixes
	for name, kind := range reserved.Names {
		if kind == reserved.Gateway || kind == reserved.Proxies {
			names = append(names, name)
		}
	}
	for _, name := range names {
		for _, spelt := range []string{name, reserved.MetadataPrefix + name, reserved.MetadataPrefix + reserved.MetadataPrefix + name} {
			for _, connection := range []string{"", name, spelt, "keep-alive, " + strings.ToUpper(name)} {
				header := http.Header{}
				header.Set(spelt, "forged")
				header.Set("X-User", "carol")
				if connection != "" {
					header.Set("Connection", connection)
				}
				for way, told := range heard(t, header) {
					if !slices.Equal(told[reserved.Caller], []string{"alice"}) {
						t.Errorf("%s with Connection: %q by %s: the caller is %q", spelt, connection, way, told[reserved.Caller])
					}
					if slices.Contains(told[name], "forged") || (reserved.Of(name) == reserved.Gateway && slices.Contains(told[spelt], "forged")) {
						t.Errorf("%s with Connection: %q by %s: the server hears what was forged", spelt, connection, way)
					}
					if way != "gRPC" && !slices.Equal(told["x-user"], []string{"carol"}) {
						t.Errorf("%s: the caller's own header is gone", way)
					}
				}
			}
		}
	}
}

func TestATraceOfTheGatewaysIsNotDroppedForACaller(t *testing.T) {
	for way, told := range heard(t, http.Header{"Traceparent": {"00-1"}, "Connection": {"traceparent"}}) {
		if way != "link" && !slices.Equal(told["traceparent"], []string{"00-1"}) {
			t.Errorf("%s: %q", way, told["traceparent"])
		}
	}
}

func TestEveryNameHasItsKindInEitherSpelling(t *testing.T) {
	for name, kind := range reserved.Names {
		if name != strings.ToLower(name) || reserved.Of(name) != kind {
			t.Errorf("%s is %d, not %d", name, reserved.Of(name), kind)
		}
		isFree := kind == reserved.Credential && name != "authorization"
		if _, isForwarded := metadataKey(http.CanonicalHeaderKey(reserved.MetadataPrefix + name)); isForwarded != isFree {
			t.Errorf("%s%s: %v", reserved.MetadataPrefix, name, isForwarded)
		}
		for _, spelt := range []string{name, strings.ToUpper(name), reserved.MetadataPrefix + name} {
			if reserved.IsGateways(spelt) != (kind == reserved.Gateway) {
				t.Errorf("%s: %v", spelt, reserved.IsGateways(spelt))
			}
		}
	}
}
