package discovery

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/logging"
)

func namesOf(list []config.Backend) string {
	names := []string{}
	for _, each := range list {
		names = append(names, each.Name)
	}
	return strings.Join(names, " ")
}

func TestAListIsReadInEachForm(t *testing.T) {
	for text, want := range map[string]string{
		"a:1/2\n\n  b:3  # the second\n# nobody\n[::1]:5/6": "a:1/2 b:3 [::1]:5/6",
		"unix:/r,/h\r\n":                      "unix:/r",
		`["a:1/2", "b:3"]`:                    "a:1/2 b:3",
		` {"backends": ["a:1/2"], "more": 1}`: "a:1/2",
		`[]`:                                  "",
		`{"backends": []}`:                    "",
		"# none":                              "",
	} {
		got, err := parseList([]byte(text))
		if err != nil || got == nil || namesOf(got) != want {
			t.Errorf("%q: %q, %v", text, namesOf(got), err)
		}
	}
}

func TestWhatIsWrongWithAListIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"a:1\nb":             `line 2: "b" is not host:rpc_port`,
		"a:0":                "line 1:",
		"link:/s":            "a link is given by --backend only",
		`["a:1", "b"]`:       "backend 1:",
		`{"servers": []}`:    `no list "backends"`,
		`{"backends": null}`: `no list "backends"`,
		`{"backends": [1]}`:  "cannot unmarshal number",
		`[{"a": 1}]`:         "cannot unmarshal object",
		"7":                  "cannot unmarshal number",
	} {
		got, err := parseList([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// put writes a file as it should be written: at once.
func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// heard keeps the last list of backends.
type heard struct {
	lock sync.Mutex
	text string
}

func (h *heard) set(now []config.Backend) {
	h.lock.Lock()
	defer h.lock.Unlock()
	h.text = namesOf(now)
}

func (h *heard) last() string {
	h.lock.Lock()
	defer h.lock.Unlock()
	return h.text
}

// followed runs a body beside a list in a file that is followed, on a virtual clock.
func followed(t *testing.T, text string, body func(path string, told func() string, log *gatewaytest.Lines)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backends")
	put(t, path, text)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		log := &gatewaytest.Lines{}
		told := &heard{}
		fixed := []config.Backend{{Name: "fixed"}}
		lists := newOf(fixed, []source{newFile(path)}, logging.New(log), func(now []config.Backend) {
			told.set(now)
			_, _ = io.WriteString(log, "told "+namesOf(now)+"\n")
		})
		if err := lists.Start(ctx); err != nil {
			t.Fatal(err)
		}
		go lists.Follow(ctx)
		body(path, func() string {
			time.Sleep(2 * lookAtFile)
			synctest.Wait()
			return told.last()
		}, log)
	})
}

func TestAFileIsFollowed(t *testing.T) {
	followed(t, "a:1", func(path string, told func() string, _ *gatewaytest.Lines) {
		for _, step := range [][2]string{{"", "fixed a:1"}, {"b:1\na:1\nb:1", "fixed b:1 a:1"}, {"[]", "fixed"}, {`["c:1"]`, "fixed c:1"}} {
			if step[0] != "" {
				put(t, path, step[0])
			}
			if got := told(); got != step[1] {
				t.Errorf("%q: %q", step[0], got)
			}
		}
	})
}

func TestWhatCannotBeReadChangesNothingAndIsSaidOnce(t *testing.T) {
	followed(t, "a:1", func(path string, told func() string, log *gatewaytest.Lines) {
		for _, text := range []string{"b", "", " \n", strings.Repeat("a:1\n", mostFileBytes)} {
			put(t, path, text)
			if got := told(); got != "fixed a:1" {
				t.Errorf("%.20q: %q", text, got)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if got := told(); got != "fixed a:1" {
			t.Errorf("without a file: %q", got)
		}
		told()
		for _, word := range []string{`"b" is not host:rpc_port`, "is empty; for no backends write []", "has more than", "no such file"} {
			if strings.Count(log.String(), word) != 1 {
				t.Errorf("%q is not there once: %s", word, log)
			}
		}
		put(t, path, "b:1")
		if got := told(); got != "fixed b:1" {
			t.Errorf("a good one again: %q", got)
		}
	})
}

func TestALinkThatPointsElsewhereIsANewList(t *testing.T) {
	followed(t, "a:1", func(path string, told func() string, _ *gatewaytest.Lines) {
		// As Kubernetes mounts a ConfigMap: backends -> data/backends, data -> .1
		folder := filepath.Dir(path)
		for version, text := range map[string]string{".1": "b:1", ".2": "c:1"} {
			if err := os.Mkdir(filepath.Join(folder, version), 0o700); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(folder, version, "backends"), text)
		}
		point := func(from, to string) {
			if err := errors.Join(os.Symlink(to, from+".new"), os.Rename(from+".new", from)); err != nil {
				t.Fatal(err)
			}
		}
		point(filepath.Join(folder, "data"), ".1")
		point(path, filepath.Join("data", "backends"))
		if got := told(); got != "fixed b:1" {
			t.Errorf("%q", got)
		}
		point(filepath.Join(folder, "data"), ".2")
		if got := told(); got != "fixed c:1" {
			t.Errorf("%q", got)
		}
	})
}

func TestAFileThatIsBeingWrittenIsWaitedFor(t *testing.T) {
	followed(t, "a:1", func(path string, told func() string, log *gatewaytest.Lines) {
		if err := os.WriteFile(path, []byte("b:1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookAtFile + settle/2) // it has been looked at once, and is going to be again
		growing, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer growing.Close()
		if _, err := io.WriteString(growing, "c:1\n"); err != nil {
			t.Fatal(err)
		}
		if got := told(); got != "fixed b:1 c:1" || strings.Contains(log.String(), "told fixed b:1\n") {
			t.Errorf("%q, %s", got, log)
		}
	})
}

func TestAFileThatIsNotThereAtTheStartIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	lists := newOf(nil, []source{newFile(path)}, logging.New(io.Discard), func([]config.Backend) {})
	if err := lists.Start(context.Background()); err == nil || !strings.Contains(err.Error(), "--backends-file: open "+path) {
		t.Errorf("%v", err)
	}
}
