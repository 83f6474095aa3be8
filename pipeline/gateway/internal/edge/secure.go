package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"pipeline/gateway/internal/h2guard"
)

// plainText is the answer to a caller that speaks HTTP on a TLS port.
const plainText = "400 this port speaks TLS: ask https://"

// SecureListener accepts connections that have shaken hands: those of HTTP/1 as shaped ones, those of HTTP/2
// as guarded
// ones. ServeTLS would hide from us what is read.
type SecureListener struct {
	net.Listener
	security *tls.Config
	within   time.Duration
	told     func(reason string) // why a caller of HTTP/2 was hung up on
	log      *slog.Logger
	faults   rate.Sometimes // one per second is logged

	ready  chan net.Conn
	closed context.Context
	close  context.CancelFunc
	failed chan error
	start  sync.Once
}

// NewSecureListener returns one of connections that have so long to shake hands.
func NewSecureListener(listener net.Listener, security *tls.Config, within time.Duration, told func(string), log *slog.Logger) *SecureListener {
	l := &SecureListener{Listener: listener, security: security, within: within, told: told, log: log}
	l.faults.Interval = time.Second
	l.ready, l.failed = make(chan net.Conn), make(chan error, 1)
	l.closed, l.close = context.WithCancel(context.Background())
	return l
}

// Accept waits for the next connection that has shaken hands.
func (l *SecureListener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.accept() })
	select {
	case conn := <-l.ready:
		return conn, nil
	case err := <-l.failed:
		l.failed <- err // for who asks again
		return nil, err
	}
}

func (l *SecureListener) accept() {
	for {
		raw, err := l.Listener.Accept()
		var network net.Error
		switch {
		case err == nil:
			go l.shake(raw)
		case errors.As(err, &network) && network.Timeout(): // nobody sets one
		default:
			l.failed <- err
			return
		}
	}
}

// shake shakes hands.
func (l *SecureListener) shake(raw net.Conn) {
	ctx, cancel := context.WithTimeout(l.closed, l.within)
	defer cancel()
	conn := tls.Server(raw, l.security)
	if err := conn.HandshakeContext(ctx); err != nil {
		l.refuse(raw, err)
		return
	}
	_ = raw.SetReadDeadline(time.Time{})
	state := conn.ConnectionState()
	found := net.Conn(secureConn{&shapedConn{Conn: conn, hasRead: true}, conn})
	if state.NegotiatedProtocol == "h2" {
		found = &guardedH2{h2guard.New(conn, true, streamsAtOnce, l.told), &state}
	}
	select {
	case l.ready <- found:
	case <-l.closed.Done():
		_ = conn.Close()
	}
}

// guardedH2 is a guarded connection of HTTP/2 over TLS. It does not tell its state as others do: package
// http would look
// for HTTP/2 on a tls.Conn only.
type guardedH2 struct {
	*h2guard.Conn
	state *tls.ConnectionState
}

// withTLS tells a handler of a connection's TLS where package http does not know of it.
func withTLS(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(connKey{}).(*guardedH2); ok {
			r.TLS = conn.state
		}
		handler.ServeHTTP(w, r)
	})
}

// refuse hangs up, and says why to who does not speak TLS.
func (l *SecureListener) refuse(raw net.Conn, err error) {
	defer raw.Close()
	var header tls.RecordHeaderError
	if errors.As(err, &header) && header.Conn != nil && header.RecordHeader[0] >= 'A' && header.RecordHeader[0] <= 'Z' {
		_ = raw.SetDeadline(time.Now().Add(refusedFor))
		_, _ = raw.Write(shaped([]byte(plainText)))
		hangUpGently(raw, refusedFor)
		return
	}
	if !errors.Is(err, io.EOF) { // who only looks whether the port is open
		l.faults.Do(func() { l.log.Warn(fmt.Sprintf("TLS: the handshake with %s failed: %v", raw.RemoteAddr(), err)) })
	}
}

// Close ends accepting, and handshakes.
func (l *SecureListener) Close() error {
	l.close()
	return l.Listener.Close()
}
