package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAFileWithoutACertificateIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadBackendTLS(backendTLSFiles{enabled: true, CA: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if _, err := LoadBackendTLS(backendTLSFiles{enabled: true, cert: path, key: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}

// issue writes a certificate of its own authority, whose name it has, and its key.
func issue(t *testing.T, files tlsFiles, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCertificatesAreReadAgainWhenTheyChange(t *testing.T) {
	folder := t.TempDir()
	files := tlsFiles{Cert: filepath.Join(folder, "cert"), key: filepath.Join(folder, "key")}
	issue(t, files, "first")
	told := []string{}
	security, err := LoadServerTLS(files, func(err error) { told = append(told, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	kept := &keptTLS{files: files, tell: func(err error) { told = append(told, err.Error()) }, now: security, seen: files.state()}
	now := time.Now()
	name := func() string {
		now = now.Add(2 * lookEvery)
		leaf, err := x509.ParseCertificate(kept.config(now).Certificates[0].Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Subject.CommonName
	}
	if got := name(); got != "first" || len(told) != 0 {
		t.Errorf("%s, %q", got, told)
	}
	issue(t, files, "the second")
	if got := name(); got != "the second" {
		t.Errorf("behind a change: %s", got)
	}
	if err := os.WriteFile(files.key, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "the second" || len(told) != 1 || !strings.Contains(told[0], files.key) {
		t.Errorf("with a broken key: %s, %q", got, told)
	}
	if name(); len(told) != 1 {
		t.Errorf("the error is reported again and again: %q", told)
	}
	issue(t, files, "a third one")
	if got := name(); got != "a third one" {
		t.Errorf("mended: %s", got)
	}
}
