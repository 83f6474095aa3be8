package main

import (
	"fmt"
	"io"
	"log"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// logger writes lines of `LEVEL text`, which a parent can sort into its own log.
type logger struct {
	mu     sync.Mutex
	writer io.Writer
}

func newLogger(writer io.Writer) *logger { return &logger{writer: writer} }

func (l *logger) infof(format string, args ...any)    { l.line("INFO", format, args) }
func (l *logger) warningf(format string, args ...any) { l.line("WARNING", format, args) }
func (l *logger) errorf(format string, args ...any)   { l.line("ERROR", format, args) }

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

func (l *logger) line(level, format string, args []any) {
	text := level + " " + printable(fmt.Sprintf(format, args...)) + "\n"
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.writer, text) // nobody is left to be told that the log is gone
}

// standard returns a log.Logger for libraries; all that they say is a warning.
func (l *logger) standard() *log.Logger { return log.New(warningWriter{l}, "", 0) }

type warningWriter struct{ logger *logger }

func (w warningWriter) Write(text []byte) (int, error) {
	w.logger.warningf("%s", strings.TrimRight(string(text), "\n"))
	return len(text), nil
}
