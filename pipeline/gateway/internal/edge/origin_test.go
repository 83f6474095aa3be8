package edge

import (
	"net/http"
	"testing"
)

func TestAWebPageFromElsewhereCannotAsk(t *testing.T) {
	for _, test := range []struct {
		host, origin, kind string
		want               bool
	}{
		{"h:80", "http://h", "", false}, {"h", "http://H:80", "text/plain", false}, {"h", "https://h:443", "", false},
		{"h", "http://x", "application/json", false}, {"h", "http://x", "Application/JSON; charset=utf-8", false},
		{"h", "http://x", "", true}, {"h", "http://x", "Text/Plain;a=b", true}, {"h", "null", "", true}, {"h", "", "", true},
		{"h:81", "http://h", "multipart/form-data; boundary=x", true}, {"h", "http://h.x", "application/x-www-form-urlencoded", true},
	} {
		r := &http.Request{Host: test.host, Header: http.Header{"Origin": {test.origin}, "Content-Type": {test.kind}}}
		if got := foreignPage(r) != ""; got != test.want {
			t.Errorf("%+v", test)
		}
	}
}

func TestOfTwoContentTypesTheLastCounts(t *testing.T) {
	for _, kinds := range [][]string{{"application/json", "text/plain"}, {"text/plain", "application/json"}} {
		r := &http.Request{Host: "h", Header: http.Header{"Origin": {"http://x"}, "Content-Type": kinds}}
		if got := foreignPage(r) != ""; got != (kinds[1] == "text/plain") {
			t.Errorf("%v", kinds)
		}
	}
}
