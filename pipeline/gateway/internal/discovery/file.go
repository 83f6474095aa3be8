package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"pipeline/gateway/internal/clock"
	"pipeline/gateway/internal/config"
)

const (
	lookAtFile    = 500 * time.Millisecond
	settle        = 50 * time.Millisecond // that a file has not changed for, when it is taken
	mostSettles   = 40
	mostFileBytes = 1 << 20
)

// file is a list in a file: one address a line, or JSON. It is read as a whole at each look: that finds a
// file
// that was renamed into its place, symbolic links that point elsewhere (as those of a ConfigMap of
// Kubernetes do), and network
// file systems, which tell nobody of changes.
type file struct {
	path   string
	last   []byte // as it was taken last
	parsed []config.Backend
}

func newFile(path string) *file { return &file{path: path} }

func (f *file) name() string { return "--backends-file " + f.path }

func (*file) interval() time.Duration { return lookAtFile }

func (*file) mustBeThere() bool { return true }

// read returns the list. It waits for a file that is being written, such as an empty one: a list without
// backends is `[]`.
func (f *file) read(ctx context.Context) ([]config.Backend, error) {
	now, err := f.content()
	if err != nil {
		return nil, err
	}
	for range mostSettles {
		if f.parsed != nil && bytes.Equal(now, f.last) {
			return f.parsed, nil
		}
		before := now
		if !clock.Sleep(ctx, settle) {
			return nil, ctx.Err()
		}
		if now, err = f.content(); err != nil {
			return nil, err
		}
		if bytes.Equal(before, now) {
			break
		}
	}
	found, err := parseList(now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name(), err)
	}
	f.last, f.parsed = now, found
	return found, nil
}

func (f *file) content() ([]byte, error) {
	opened, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("--backends-file: %w", err)
	}
	defer opened.Close()
	content, err := io.ReadAll(io.LimitReader(opened, mostFileBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--backends-file: %w", err)
	case len(content) > mostFileBytes:
		return nil, fmt.Errorf("%s has more than %d bytes", f.name(), mostFileBytes)
	case len(bytes.TrimSpace(content)) == 0:
		return nil, errors.New(f.name() + " is empty; for no backends write []")
	}
	return content, nil
}

// parseList reads `["host:rpc_port/http_port", ...]`, `{"backends": [...]}`, or one address a line, with
// empty lines and
// comments behind a `#`. The list that it returns is not nil.
func parseList(content []byte) ([]config.Backend, error) {
	if json.Valid(content) {
		return parseJSON(content)
	}
	found := []config.Backend{}
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		backend, err := config.ParseRemote(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		found = append(found, backend)
	}
	return found, nil
}

func parseJSON(content []byte) ([]config.Backend, error) {
	var addresses []string
	if bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
		var document struct{ Backends *[]string }
		if err := json.Unmarshal(content, &document); err != nil {
			return nil, err
		}
		if document.Backends == nil {
			return nil, errors.New(`the object has no list "backends"`)
		}
		addresses = *document.Backends
	} else if err := json.Unmarshal(content, &addresses); err != nil {
		return nil, err
	}
	found := []config.Backend{}
	for at, text := range addresses {
		backend, err := config.ParseRemote(text)
		if err != nil {
			return nil, fmt.Errorf("backend %d: %w", at, err)
		}
		found = append(found, backend)
	}
	return found, nil
}
