package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"pipeline/gateway/internal/gatewaytest"
)

// authority is a certificate authority of a test's.
type authority struct {
	dir  string
	file string // its certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir(), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.file, _ = a.issue(t, "ca", template)
	a.pool.AddCert(a.cert)
	return a
}

// issue writes a certificate and its key; the first one is the authority's own.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		a.key = key
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return a.write(t, name+".crt", "CERTIFICATE", der), a.write(t, name+".key", "EC PRIVATE KEY", secret)
}

func (a *authority) write(t *testing.T, name, kind string, data []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pair issues a certificate for 127.0.0.1 and backend.test.
func (a *authority) pair(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	return a.issue(t, name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"backend.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func load(t *testing.T, certFile, keyFile string) tls.Certificate {
	t.Helper()
	loaded, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func TestTLSIsServedInBothVersionsOfHTTP(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	g, _ := startEcho(t, limited(1000), "--tls-cert", cert, "--tls-key", key)
	for _, isTwo := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted.pool}, ForceAttemptHTTP2: isTwo}}
		answer, err := client.Do(newRequest(t, "POST", g.url+"/svc/p", gatewaytest.Pair))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != 200 || (answer.ProtoMajor == 2) != isTwo {
			t.Errorf("%s %d", answer.Proto, answer.StatusCode)
		}
		doWith(t, client, newRequest(t, "POST", g.url+"/svc/p", strings.Repeat("x", 5000))).isRefusal(t, 413, 8000, "1000 bytes")
		client.CloseIdleConnections()
	}
}

func TestCallersMayNeedACertificate(t *testing.T) {
	trusted, other := newAuthority(t), newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	g, _ := startEcho(t, nil, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", trusted.file)
	ask := func(of *authority) error {
		security := &tls.Config{RootCAs: trusted.pool}
		if of != nil {
			ownCert, ownKey := of.pair(t, "caller")
			security.Certificates = []tls.Certificate{load(t, ownCert, ownKey)}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: security, DisableKeepAlives: true}}
		answer, err := client.Do(newRequest(t, "POST", g.url+"/svc/p", gatewaytest.Pair))
		if err == nil {
			_ = answer.Body.Close()
		}
		return err
	}
	if err := ask(trusted); err != nil {
		t.Error(err)
	}
	if ask(nil) == nil || ask(other) == nil {
		t.Error("a caller without a certificate of the authority was served")
	}
}

// startSecure starts both ports of a backend with TLS that wants a certificate.
func startSecure(t *testing.T, trusted *authority) (address string) {
	t.Helper()
	cert, key := trusted.pair(t, "server")
	security := &tls.Config{
		Certificates: []tls.Certificate{load(t, cert, key)}, ClientCAs: trusted.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	backend := gatewaytest.StartDouble(t, gatewaytest.Echo, gatewaytest.DoubleOptions{Server: []grpc.ServerOption{grpc.Creds(credentials.NewTLS(security))}})
	listener, err := tls.Listen("tcp", "127.0.0.1:0", security)
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(told)}
	go func() { _ = web.Serve(listener) }()
	t.Cleanup(func() { _ = web.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return backend.Address + "/" + port
}

func TestTLSIsSpokenToBothPortsOfABackend(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	address := startSecure(t, trusted)
	options := []string{"--backend", address, "--backend-tls", "--backend-ca", trusted.file, "--backend-cert", cert, "--backend-key", key}
	for _, more := range [][]string{nil, {"--backend-server-name", "backend.test"}} {
		g := startReady(t, append(options, more...)...)
		if got := g.post(t, gatewaytest.Pair); got.status != 200 {
			t.Errorf("%q: gRPC: %d %s", more, got.status, got.body)
		}
		if got := g.ask(t, "POST", "/v2", "x"); got.status != http.StatusTeapot || got.body != "x" {
			t.Errorf("%q: HTTP: %d %s", more, got.status, got.body)
		}
	}
}

func TestABackendThatIsNotTrustedIsNotAsked(t *testing.T) {
	address := startSecure(t, newAuthority(t))
	for _, test := range []struct{ option, value, why string }{
		{"--backend-ca", newAuthority(t).file, "unknown authority"},
		{"--backend-server-name", "other.test", "certificate"},
	} {
		g := start(t, nil, "--backend", address, "--backend-tls", test.option, test.value)
		gatewaytest.WaitUntil(t, "it says "+test.why, func() bool {
			return strings.Contains(g.post(t, gatewaytest.Pair).response(t).ErrMsg, test.why)
		})
	}
}
