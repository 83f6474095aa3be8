package link

import (
	"strings"
	"testing"

	"pipeline/gateway/internal/link/frame"
)

func TestWhatIsWrittenIsLetGo(t *testing.T) {
	conn, batch := newLinkConn(nil), newLinkBatch()
	_ = conn.send(callOfLink(t, strings.Repeat("a", 2*frame.MostPieceBytes)))
	for conn.take(batch) {
		batch.sent()
	}
	for _, each := range append(batch.vector[:cap(batch.vector)], batch.done[:cap(batch.done)]...) {
		if each != nil {
			t.Errorf("%d bytes are kept", len(each))
		}
	}
}
