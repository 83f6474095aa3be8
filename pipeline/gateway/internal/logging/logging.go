// Package logging writes lines that a parent can copy into its own log.
package logging

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// New returns a log of lines of `LEVEL text`, which a parent can sort into its own.
func New(writer io.Writer) *slog.Logger { return slog.New(&lineHandler{writer: writer}) }

// NewJSON returns a log of JSON objects; for a parent the level precedes them, and they have neither a level
// nor a time.
func NewJSON(writer io.Writer, hasParent bool) *slog.Logger {
	return slog.New(&lineHandler{writer: writer, isJSON: true, hasParent: hasParent})
}

// lineHandler writes a line for each record: its level, its message, and its attributes as name=value.
type lineHandler struct {
	lock      sync.Mutex
	writer    io.Writer
	isJSON    bool
	hasParent bool
}

// Enabled says whether a level is written: all from INFO on are.
func (*lineHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle writes a record.
func (h *lineHandler) Handle(_ context.Context, record slog.Record) error {
	if h.isJSON && (record.NumAttrs() > 0 || !h.hasParent) {
		return h.write(h.object(record))
	}
	text := record.Message
	record.Attrs(func(each slog.Attr) bool {
		text += " " + each.String()
		return true
	})
	return h.write(levelName(record.Level) + " " + printable(text))
}

func (h *lineHandler) write(line string) error {
	h.lock.Lock()
	defer h.lock.Unlock()
	_, err := io.WriteString(h.writer, line+"\n")
	return err
}

// object returns a record as JSON, in which no text can begin a line of its own.
func (h *lineHandler) object(record slog.Record) string {
	fields := map[string]any{"message": record.Message}
	record.Attrs(func(each slog.Attr) bool {
		fields[each.Key] = each.Value.Any()
		return true
	})
	if h.hasParent {
		data, _ := json.Marshal(fields) // texts and numbers: it cannot fail
		return levelName(record.Level) + " " + string(data)
	}
	fields["level"] = levelName(record.Level)
	fields["time"] = record.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	data, _ := json.Marshal(fields)
	return string(data)
}

// WithAttrs has nothing to keep: nobody here gives a log attributes of its own.
func (h *lineHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup has nothing to keep either.
func (h *lineHandler) WithGroup(string) slog.Handler { return h }

// levelName is that of Python's logging, which reads the lines of its child.
func levelName(level slog.Level) string {
	if level == slog.LevelWarn {
		return "WARNING"
	}
	return level.String()
}

// printable escapes what cannot be printed: what a caller sent starts no line of its own, and moves no
// terminal's cursor.
func printable(text string) string {
	if strings.IndexFunc(text, isUnprintable) < 0 {
		return text
	}
	shown := make([]byte, 0, len(text)+16)
	for at := 0; at < len(text); {
		char, size := utf8.DecodeRuneInString(text[at:])
		switch {
		case !isUnprintable(char):
			shown = append(shown, text[at:at+size]...)
		case char == utf8.RuneError && size == 1:
			shown = fmt.Appendf(shown, `\x%02x`, text[at])
		default:
			quoted := strconv.QuoteRune(char)
			shown = append(shown, quoted[1:len(quoted)-1]...)
		}
		at += size
	}
	return string(shown)
}

func isUnprintable(char rune) bool { return char == utf8.RuneError || !strconv.IsPrint(char) }

// Standard returns a log.Logger for libraries; all of their messages are warnings.
func Standard(own *slog.Logger) *log.Logger {
	return slog.NewLogLogger(own.Handler(), slog.LevelWarn)
}
