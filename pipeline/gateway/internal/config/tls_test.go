package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
