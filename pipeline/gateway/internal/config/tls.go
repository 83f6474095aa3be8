package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// tlsFiles are the files for serving TLS; without a certificate there is none.
type tlsFiles struct {
	Cert, key string
	ClientCA  string // not "": callers need a certificate of this authority
}

// backendTLSFiles say how to speak TLS to the backends.
type backendTLSFiles struct {
	enabled    bool
	CA         string // "": the system's authorities
	cert, key  string // ours, if they want one
	serverName string // "": the backend's host
}

// LoadServerTLS returns the TLS configuration of the server; nil: without TLS. Changed files are read again at
// the next connection; a file that cannot be read changes nothing, and tell receives the error.
func LoadServerTLS(files tlsFiles, tell func(error)) (*tls.Config, error) {
	if files.Cert == "" {
		return nil, nil
	}
	first, err := files.load()
	if err != nil {
		return nil, err
	}
	kept := &keptTLS{files: files, tell: tell, now: first, seen: files.state()}
	first = first.Clone()
	first.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return kept.config(time.Now()), nil }
	return first, nil
}

// suites are those of TLS 1.2 that are taken: with forward secrecy, and no CBC. TLS 1.3 has its own.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// load reads the files.
func (f tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %w", f.Cert, f.key, err)
	}
	security := &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: suites, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"},
	}
	if f.ClientCA != "" {
		if security.ClientCAs, err = loadAuthorities(f.ClientCA); err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
		security.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return security, nil
}

// state changes with the files: by their times, sizes, and by which files the names lead to.
func (f tlsFiles) state() (found string) {
	for _, path := range []string{f.Cert, f.key, f.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			found += fmt.Sprintln(info.ModTime().UnixNano(), info.Size())
		}
		target, _ := filepath.EvalSymlinks(path)
		found += target + "\n"
	}
	return found
}

const lookEvery = time.Second

// keptTLS is how to serve TLS with the files as they are now.
type keptTLS struct {
	files  tlsFiles
	tell   func(error)
	lock   sync.Mutex
	now    *tls.Config
	seen   string
	looked time.Time
}

// config returns it; it looks at the files once a second at most.
func (k *keptTLS) config(at time.Time) *tls.Config {
	k.lock.Lock()
	defer k.lock.Unlock()
	if at.Sub(k.looked) < lookEvery {
		return k.now
	}
	k.looked = at
	state := k.files.state()
	if state == k.seen {
		return k.now
	}
	k.seen = state
	found, err := k.files.load()
	if err != nil {
		k.tell(fmt.Errorf("TLS continues with the previous certificates: %w", err))
		return k.now
	}
	k.now = found
	return found
}

// BackendTLS is how to speak TLS to the backends.
type BackendTLS struct {
	base       *tls.Config
	serverName string
}

// LoadBackendTLS returns how to speak TLS to the backends, nil for not at all.
func LoadBackendTLS(files backendTLSFiles) (*BackendTLS, error) {
	if !files.enabled {
		return nil, nil
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CA != "" {
		authorities, err := loadAuthorities(files.CA)
		if err != nil {
			return nil, fmt.Errorf("--backend-ca: %w", err)
		}
		base.RootCAs = authorities
	}
	if files.cert != "" {
		pair, err := tls.LoadX509KeyPair(files.cert, files.key)
		if err != nil {
			return nil, fmt.Errorf("--backend-cert %s, --backend-key %s: %w", files.cert, files.key, err)
		}
		base.Certificates = []tls.Certificate{pair}
	}
	return &BackendTLS{base, files.serverName}, nil
}

// ForHost returns the configuration for a backend on host.
func (b *BackendTLS) ForHost(host string) *tls.Config {
	own := b.base.Clone()
	own.ServerName = host
	if b.serverName != "" {
		own.ServerName = b.serverName
	}
	return own
}

func loadAuthorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", path)
	}
	return authorities, nil
}
