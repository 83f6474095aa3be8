package gateway

import (
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"pipeline/gateway/internal/gatewaytest"
)

// waitUntilSentAway waits for the GOAWAY of a caller that went too far.
func (c *h2Caller) waitUntilSentAway() {
	c.t.Helper()
	goodbye := c.hear(func(frame http2.Frame) bool {
		_, isGoodbye := frame.(*http2.GoAwayFrame)
		return isGoodbye
	}).(*http2.GoAwayFrame)
	if goodbye.ErrCode != http2.ErrCodeEnhanceYourCalm {
		c.t.Errorf("%v", goodbye)
	}
}

// flood sends so many frames, as far as they are taken.
func (c *h2Caller) flood(count int, write func(*http2.Framer) error) {
	go func() {
		for range count {
			if write(c.framer) != nil {
				return
			}
		}
	}()
}

func ping(framer *http2.Framer) error { return framer.WritePing(false, [8]byte{}) }

func TestWhoFloodsHTTP2IsSentAway(t *testing.T) {
	g := start(t, nil, "--h2c", "--backend", gatewaytest.StartDouble(t, gatewaytest.Large(10), gatewaytest.DoubleOptions{}).Address)
	g.waitUntilServing(t, 1)
	caller, other := startH2(t, g.address), startH2(t, g.address)
	other.ask(1, gatewaytest.Pair)
	if status := other.status(); status != "200" {
		t.Error(status)
	}
	caller.flood(1500, ping)
	caller.waitUntilSentAway()
	other.ask(3, gatewaytest.Pair)
	if status := other.status(); status != "200" {
		t.Errorf("another caller: %s", status)
	}
	if text := g.ask(t, "GET", "/metrics", "").body; !strings.Contains(text, `hung_up_total{reason="control_frames"} 1`) {
		t.Error(text)
	}
}

func TestWhoFloodsHTTP2UnderTLSIsSentAway(t *testing.T) {
	trusted := newAuthority(t)
	cert, key := trusted.pair(t, "gateway")
	g, _ := startEcho(t, nil, "--tls-cert", cert, "--tls-key", key)
	security := &tls.Config{RootCAs: trusted.pool, NextProtos: []string{"h2"}}
	dial := func(address string) (net.Conn, error) { return tls.Dial("tcp", address, security) }
	caller := startH2By(t, dial, g.address)
	caller.flood(1500, ping)
	caller.waitUntilSentAway()
}

func TestABodyThatIsOnlyAnnouncedTakesNoMemory(t *testing.T) {
	double := gatewaytest.StartDouble(t, gatewaytest.Large(10), gatewaytest.DoubleOptions{})
	g := start(t, nil, "--backend", double.Address)
	g.waitUntilServing(t, 1)
	const callers = 50
	for range callers {
		conn, err := net.Dial("tcp", g.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
		if _, err := conn.Write([]byte("POST /svc/p HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n{")); err != nil {
			t.Fatal(err)
		}
	}
	gatewaytest.WaitUntil(t, "all are inside", func() bool { return g.Budget.Held.Load() >= callers*(32<<10) })
	if held := g.Budget.Held.Load(); held > callers*(160<<10) {
		t.Errorf("%d bytes for each", held/callers)
	}
}

// A backend that hears no more on its connection says nothing of the caller's, which has other streams.
func TestAnHTTP2ConnectionOutlivesARefusal(t *testing.T) {
	g := startBoth(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}, nil, "--h2c")
	caller := startH2(t, g.address)
	for number := range 3 {
		caller.ask(uint32(2*number+1), "{}", ":path", "/v2/x")
		frame := caller.hear(func(frame http2.Frame) bool {
			switch frame.(type) {
			case *http2.MetaHeadersFrame, *http2.GoAwayFrame:
				return true
			}
			return false
		})
		if answer, isAnswer := frame.(*http2.MetaHeadersFrame); !isAnswer || answer.PseudoValue("status") != "405" {
			t.Fatalf("%v", frame)
		}
	}
}
