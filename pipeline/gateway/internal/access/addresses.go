package access

import (
	"net"
	"net/netip"
	"sync"

	"pipeline/gateway/internal/config"
)

// Addresses counts the connections of each address, of IPv6 of each /64, over all ports. nil has no limit.
type Addresses struct {
	most  int
	trust *config.Trust
	lock  sync.Mutex
	open  map[netip.Prefix]int
}

// NewAddresses returns one with a limit; nil for none. Trusted proxies stand for many, and have none.
func NewAddresses(most int, trust *config.Trust) *Addresses {
	if most == 0 {
		return nil
	}
	return &Addresses{most: most, trust: trust, open: map[netip.Prefix]int{}}
}

// Enter says whether a connection may be there, and returns what to call when it is closed.
func (a *Addresses) Enter(conn net.Conn) (leave func(), isIn bool) {
	if a == nil || conn.RemoteAddr() == nil || a.trust.Proxy(conn.RemoteAddr().String()) {
		return func() {}, true
	}
	_, from := a.trust.Origin(conn.RemoteAddr().String(), nil)
	key := networkOf(from)
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.open[key] >= a.most {
		return nil, false
	}
	a.open[key]++
	return sync.OnceFunc(func() { a.leave(key) }), true
}

func (a *Addresses) leave(key netip.Prefix) {
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.open[key]--; a.open[key] == 0 {
		delete(a.open, key)
	}
}

// Listen returns a listener that hangs up on connections which are one too many; refused counts them.
func (a *Addresses) Listen(listener net.Listener, refused func()) net.Listener {
	if a == nil {
		return listener
	}
	return &addressListener{listener, a, refused}
}

type addressListener struct {
	net.Listener
	addresses *Addresses
	refused   func()
}

// Accept waits for the next connection that may be there.
func (l *addressListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, isIn := l.addresses.Enter(conn); isIn {
			return &addressConn{conn, leave}, nil
		}
		l.refused()
		_ = conn.Close()
	}
}

type addressConn struct {
	net.Conn
	leave func()
}

// Close hangs up, and makes room for another one.
func (c *addressConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
