package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/link/frame"
)

const inferPath = "/v2/models/m/infer"

// postingGreeting is what a server says that answers POSTs over its link.
func postingGreeting(wantsHeaders bool) frame.Greeting {
	return frame.Greeting{
		Version: frame.Version, Limits: frame.Limits{CallCredit: frame.CallCredit, StreamCredit: frame.StreamCredit},
		Methods: []frame.Entry{{ID: 1, Name: "inference"}, {ID: 2, Name: "post"}}, Trace: true, Headers: wantsHeaders,
	}
}

// startPosting runs a gateway before a server that answers POSTs over its link, and has an HTTP port for all others.
func startPosting(t *testing.T, wantsHeaders bool) (*running, *gatewaytest.LinkPeer) {
	t.Helper()
	server := gatewaytest.StartLinkServer(t, "")
	g := start(t, nil, "--backend", config.LinkScheme+server.Path+","+gatewaytest.StartUnixWeb(t, http.HandlerFunc(told)))
	peer := gatewaytest.Soon(t, "a connection", server.Peers)
	peer.Meet(postingGreeting(wantsHeaders), true)
	g.waitUntilServing(t, 1)
	return g, peer
}

// posted returns the id of the POST that the server is asked next, its head and its body.
func posted(t *testing.T, peer *gatewaytest.LinkPeer) (id uint64, head, body string) {
	t.Helper()
	got := peer.Hear()
	left, opened, data, err := frame.ReadOpen(got.Body.Data)
	if err != nil || got.Method != 2 || left >= 0 {
		t.Fatalf("method %d, %v left, %v", got.Method, left, err)
	}
	return got.ID, string(opened.Metadata), string(data)
}

// later sends a request, and returns where its answer is to come.
func later(t *testing.T, g *running, body string, header ...string) chan reply {
	t.Helper()
	answered := make(chan reply, 1)
	go func() { answered <- g.ask(t, "POST", inferPath, body, header...) }()
	return answered
}

func TestAPOSTGoesOverTheLinkWithWhatItsAnswerDependsOn(t *testing.T) {
	for _, size := range []int{0, 2, 64 << 10} {
		g, peer := startPosting(t, false)
		body := strings.Repeat("x", size)
		answered := later(t, g, body, "Content-Type", "text/x", "X-Other", "1", "Grpc-Timeout", "5S", "Traceparent", "t")
		id, head, came := posted(t, peer)
		want := fmt.Sprintf("POST %s HTTP/1.1\r\nContent-Type: text/x\r\nGrpc-Timeout: 5S\r\nTraceparent: t\r\ncontent-length: %d\r\n\r\n", inferPath, size)
		if head != want || came != body {
			t.Errorf("%q and %d bytes, not %q", head, len(came), want)
		}
		end := frame.Ended{Status: http.StatusCreated, Trailers: link.AppendField(link.AppendField(nil, "content-type", "text/y"), "x-told", "z")}
		peer.Write(frame.AppendEnd(nil, id, end, []byte("done")))
		got := gatewaytest.Soon(t, "an answer", answered)
		if got.status != http.StatusCreated || got.body != "done" || got.header.Get("Content-Type") != "text/y" || got.header.Get("X-Told") != "z" {
			t.Errorf("%+v", got)
		}
	}
}

func TestAServerThatWantsThemIsToldAllHeadersOfAPOST(t *testing.T) {
	g, peer := startPosting(t, true)
	answered := later(t, g, "{}", "X-User", "anna")
	id, head, _ := posted(t, peer)
	gatewaytest.WantIn(t, head, "\r\nX-User: anna\r\n", "\r\nHost: "+g.address+"\r\n", "\r\ncontent-length: 2\r\n\r\n")
	if strings.Count(strings.ToLower(head), "content-length") != 1 {
		t.Errorf("%q", head)
	}
	peer.AnswerBytes(id, []byte("{}"))
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != 200 || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", got)
	}
}

// Nobody answers on the link: what went there would have no answer.
func TestAPOSTThatIsNotPlainGoesToTheHTTPPort(t *testing.T) {
	g, _ := startPosting(t, false)
	for _, head := range []string{
		"POST " + inferPath + "?x HTTP/1.1\r\nContent-Length: 2",
		"POST " + inferPath + "? HTTP/1.1\r\nContent-Length: 2",
		"PUT " + inferPath + " HTTP/1.1\r\nContent-Length: 2",
		"POST " + inferPath + " HTTP/1.1\r\nContent-Length: 2\r\nOrigin: http://h",
		"POST " + inferPath + " HTTP/1.1\r\nContent-Length: 2\r\nContent-Encoding: x",
		"POST " + inferPath + " HTTP/1.1\r\nContent-Length: 2\r\nAccept: text/event-stream",
		"POST " + inferPath + " HTTP/1.1\r\nContent-Length: 2\r\nContent-Type: a\r\nContent-Type: b",
		"POST " + inferPath + " HTTP/1.1\r\nContent-Length: 2\r\nContent-Type: " + strings.Repeat("a", 9000),
	} {
		gatewaytest.WantIn(t, g.raw(t, head+"\r\nHost: h\r\nConnection: close\r\n\r\n{}"), "HTTP/1.1 418 ", "\r\n\r\n{}")
	}
	chunked := "POST " + inferPath + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
	gatewaytest.WantIn(t, g.raw(t, chunked), "HTTP/1.1 418 ", "{}")
}

func TestAPOSTThatTheServerLeavesGoesToTheHTTPPort(t *testing.T) {
	g, peer := startPosting(t, false)
	for _, test := range []struct {
		text     string
		isByHead bool
	}{{"", false}, {"", false}, {"its head", true}} {
		answered := later(t, g, "{}")
		id, _, _ := posted(t, peer)
		peer.Write(frame.AppendReset(nil, id, frame.ReasonLeft, test.text))
		if got := gatewaytest.Soon(t, "an answer", answered); got.status != http.StatusTeapot || got.body != "{}" {
			t.Errorf("%+v", got)
		}
	}
	if got := gatewaytest.Soon(t, "an answer", later(t, g, "{}")); got.status != http.StatusTeapot { // nobody is asked about its head
		t.Errorf("%+v", got)
	}
}

func TestWhatEndsAPOSTIsTold(t *testing.T) {
	g, peer := startPosting(t, false)
	answered := later(t, g, "{}")
	id, _, _ := posted(t, peer)
	peer.Fail(id, 503, 5000, "no room")
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != 503 || !strings.Contains(got.body, "no room") {
		t.Errorf("%+v", got)
	}
	answered = later(t, g, "{}")
	posted(t, peer)
	_ = peer.Raw.Close()
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != 503 {
		t.Errorf("%+v", got)
	}
}

func TestAServerThatFailsPOSTsIsEjected(t *testing.T) {
	var args []string
	peers := [2]*gatewaytest.LinkServer{gatewaytest.StartLinkServer(t, ""), gatewaytest.StartLinkServer(t, "")}
	for at, status := range []int{http.StatusInternalServerError, http.StatusOK} {
		args = append(args, "--backend", config.LinkScheme+peers[at].Path)
		go func() {
			peer := <-peers[at].Peers
			peer.Meet(postingGreeting(false), true)
			for {
				got, err := peer.Message()
				if err != nil {
					return
				}
				peer.Write(frame.AppendEnd(nil, got.ID, frame.Ended{Status: status}, []byte("{}")))
			}
		}()
	}
	g := start(t, nil, append(args, "--eject-after", "2")...)
	g.waitUntilServing(t, 2)
	found := map[int]int{}
	for range 8 {
		found[g.ask(t, "POST", inferPath, "{}").status]++
	}
	if found[500] != 2 || found[200] != 6 {
		t.Errorf("%v", found)
	}
}

func TestAPOSTThatIsNotAnsweredInTimeIsDropped(t *testing.T) {
	g, peer := startPosting(t, false)
	answered := later(t, g, "{}", "Grpc-Timeout", "1m")
	id, _, _ := posted(t, peer)
	if got := gatewaytest.Soon(t, "an answer", answered); got.status != http.StatusGatewayTimeout {
		t.Errorf("%+v", got)
	}
	if got := peer.Hear(); got.Kind != frame.Reset || got.ID != id {
		t.Errorf("%+v", got)
	}
}
