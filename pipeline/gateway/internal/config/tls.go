package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
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

// LoadServerTLS returns how to serve TLS, nil for not at all.
func LoadServerTLS(files tlsFiles) (*tls.Config, error) {
	if files.Cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %w", files.Cert, files.key, err)
	}
	security := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if files.ClientCA != "" {
		if security.ClientCAs, err = loadAuthorities(files.ClientCA); err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
		security.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return security, nil
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
