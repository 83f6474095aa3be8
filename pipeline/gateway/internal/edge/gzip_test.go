package edge

import (
	"net/http"
	"testing"
)

func TestGzipIsSentToWhoAcceptsIt(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "gzip": true, "GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.000": false, "br, gzip": true,
		"*": true, "*;q=0": false, "*, gzip;q=0": false, "deflate": false, "gzip;q=x": true,
	} {
		if got := acceptsGzip(http.Header{"Accept-Encoding": {text}}); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if acceptsGzip(nil) {
		t.Error("nothing was accepted")
	}
}
