package gateway

import (
	"crypto/tls"
	"net/http"
	"regexp"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/pipelinepb"
)

var addresses = regexp.MustCompile(`listens on (\S+)(?: and (\S+))?,`)

// dial returns a connection for gRPC.
func dial(t *testing.T, address string, security credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(security))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// askBoth asks for an inference by gRPC and by HTTP, at one address.
func askBoth(t *testing.T, address string, security credentials.TransportCredentials, client *http.Client, scheme string) {
	t.Helper()
	conn := dial(t, address, security)
	got, err := pipelinepb.NewPipelineServiceClient(conn).Inference(t.Context(), &pipelinepb.Request{Key: []string{"a"}, Value: []string{"1"}}, grpc.WaitForReady(true))
	if err != nil || len(got.Value) != 1 || got.Value[0] != "1" {
		t.Errorf("gRPC: %v, %v", got, err)
	}
	health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	if got := doWith(t, client, newRequest(t, "POST", scheme+"://"+address+"/svc/p", gatewaytest.Pair)); got.status != 200 {
		t.Errorf("HTTP: %d %s", got.status, got.body)
	}
}

func TestOnePortTakesHTTPAndGRPC(t *testing.T) {
	c := startChild(t, "--one-port", "--parent", "--stall-timeout", "1m", "--backend", servingLink(t, gatewaytest.Echo))
	c.readReady(t)
	askBoth(t, c.url[len("http://"):], insecure.NewCredentials(), http.DefaultClient, "http")
	c.signal <- syscall.SIGTERM
	if err := c.waitUntilEnded(t); err != nil {
		t.Error(err)
	}
}

func TestOnePortTakesBothOverTLS(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	c := startChild(t, "--one-port", "--parent", "--stall-timeout", "1m", "--tls-cert", cert, "--tls-key", key, "--backend", servingLink(t, gatewaytest.Echo))
	c.readReady(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted.pool}}}
	askBoth(t, c.url[len("http://"):], credentials.NewTLS(&tls.Config{RootCAs: trusted.pool}), client, "https")
}

func TestWhatIsForAdminsHasAPortOfItsOwn(t *testing.T) {
	c := startChild(t, "--one-port", "--parent", "--stall-timeout", "1m", "--admin-listen", "127.0.0.1:0", "--backend", servingLink(t, gatewaytest.Echo))
	c.readReady(t)
	found := addresses.FindStringSubmatch(c.log.String())
	if found == nil || found[2] == "" {
		t.Fatal(c.log.String())
	}
	public, admin := found[1], found[2]
	for _, each := range []struct {
		method, path  string
		public, admin int
	}{
		{"GET", "/health/live", 200, 200},
		{"GET", "/metrics", 404, 200},
		{"GET", "/metrics?x=1", 404, 200},
		{"POST", "/svc/p", 200, 200},
	} {
		for address, want := range map[string]int{public: each.public, admin: each.admin} {
			got := doWith(t, http.DefaultClient, newRequest(t, each.method, "http://"+address+each.path, gatewaytest.Pair))
			if got.status != want {
				t.Errorf("%s of %s: %d %s", each.path, address, got.status, got.body)
			}
		}
	}
	for address, want := range map[string]codes.Code{public: codes.Unimplemented, admin: codes.OK} {
		conn := dial(t, address, insecure.NewCredentials())
		if err := conn.Invoke(t.Context(), gatewaytest.LinkUnary, &pipelinepb.Request{}, &pipelinepb.Response{}); status.Code(err) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}
