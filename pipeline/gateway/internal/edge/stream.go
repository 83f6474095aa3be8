package edge

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// stream is the body of a request that is passed on as it comes. It says how it ended.
type stream struct {
	exchange *exchange
	source   io.ReadCloser
	ended    chan struct{} // closed when all of it was read
	read     atomic.Int64  // bytes

	lock   sync.Mutex
	failed error
	isShut bool
}

var errShut = errors.New("the body is not wanted any more")

func newStream(x *exchange) *stream {
	return &stream{exchange: x, source: x.request.Body, ended: make(chan struct{})}
}

// Read reads on; it is one reader's, while others may ask how it went.
func (s *stream) Read(buffer []byte) (int, error) {
	s.lock.Lock()
	failed, isShut := s.failed, s.isShut
	s.lock.Unlock()
	if failed != nil {
		return 0, failed
	}
	if isShut {
		return 0, errShut
	}
	n, err := s.source.Read(buffer)
	s.read.Add(int64(n))
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		s.exchange.hasArrived()
		close(s.ended)
	}
	s.lock.Lock()
	s.failed = err
	s.lock.Unlock()
	return n, err
}

// await waits until all was read, or a backend has taken nothing of it for a patience.
func (s *stream) await(ctx context.Context, patience time.Duration) {
	for before := int64(-1); ; {
		now := s.read.Load()
		if now == before {
			return
		}
		before = now
		select {
		case <-s.ended:
			return
		case <-time.After(patience):
		case <-ctx.Done():
			return
		}
	}
}

// Close keeps the source from being read any more. It does not close that: the server does, and
// would wait here for what a slow caller still sends.
func (s *stream) Close() error {
	s.lock.Lock()
	s.isShut = true
	s.lock.Unlock()
	return nil
}

// fault is why the rest does not come; nil if it came, or may come yet.
func (s *stream) fault() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.failed == io.EOF {
		return nil
	}
	return s.failed
}

// hasEnded says whether all was read, now or after a little while.
func (s *stream) hasEnded(wait time.Duration) bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(wait):
		return false
	}
}
