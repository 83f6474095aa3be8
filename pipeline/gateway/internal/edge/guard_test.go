package edge

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/metrics"
)

// taking is a connection whose peer takes so many bytes of each write before that times out.
type taking struct {
	net.Conn
	takes []int
	got   int
}

func (c *taking) SetWriteDeadline(time.Time) error { return nil }

func (c *taking) Write(data []byte) (int, error) {
	if len(c.takes) == 0 {
		c.got += len(data)
		return len(data), nil
	}
	n := min(c.takes[0], len(data))
	c.takes = c.takes[1:]
	c.got += n
	return n, os.ErrDeadlineExceeded
}

func TestACallerThatTakesSomethingNowAndThenGetsAll(t *testing.T) {
	for _, test := range []struct {
		takes []int
		got   int
		err   error
	}{
		{nil, 100, nil},
		{[]int{1, 1, 50, 1}, 100, nil},
		{[]int{1, 0, 50, 0, 1}, 100, nil},
		{[]int{1, 0, 0}, 1, os.ErrDeadlineExceeded},
		{[]int{0, 0}, 0, os.ErrDeadlineExceeded},
	} {
		raw := &taking{takes: test.takes}
		conn := newGuardedConn(raw, NewGuard(nil, &config.Config{WriteTimeout: time.Hour}, metrics.New()))
		n, err := conn.Write(make([]byte, 100))
		if n != test.got || raw.got != test.got || !errors.Is(err, test.err) {
			t.Errorf("%v: %d, %d, %v", test.takes, n, raw.got, err)
		}
	}
	raw := &taking{takes: []int{1}}
	conn := newGuardedConn(raw, NewGuard(nil, &config.Config{WriteTimeout: time.Hour}, metrics.New()))
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if n, err := conn.Write(make([]byte, 100)); n != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("beyond a deadline: %d, %v", n, err)
	}
}
