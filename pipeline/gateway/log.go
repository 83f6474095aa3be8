package main

import (
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
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

// lineBreaks keeps what a caller sent from starting a line of its own.
var lineBreaks = strings.NewReplacer("\r", `\r`, "\n", `\n`)

func (l *logger) line(level, format string, args []any) {
	text := level + " " + lineBreaks.Replace(fmt.Sprintf(format, args...)) + "\n"
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
