package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/pipelinepb"
)

// linkServer is the server's end of links: a Unix socket.
type linkServer struct {
	path  string
	peers chan *linkPeer // one for each connection
}

// linkPeer is the server's end of one connection.
type linkPeer struct {
	t      *testing.T
	raw    net.Conn
	source *bufio.Reader
	pieces map[uint64][]byte
	isMute bool // it answers no heartbeat

	wantsHeaders bool // it has said so
}

// linkAsked is a request as the server sees it.
type linkAsked struct {
	id      uint64
	timeout time.Duration // negative: none was given
	trace   string
	headers []string // names and values by turns
	request *pipelinepb.Request
}

// startLinkServer listens at a path; "": at any.
func startLinkServer(t *testing.T, path string) *linkServer {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "0.link")
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := &linkServer{path, make(chan *linkPeer, 16)}
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = raw.Close() })
			server.peers <- &linkPeer{t: t, raw: raw, source: bufio.NewReader(raw), pieces: map[uint64][]byte{}}
		}
	}()
	return server
}

// peer returns the next connection, on which the server has said how it is.
func (s *linkServer) peer(t *testing.T, isReady byte) *linkPeer {
	t.Helper()
	peer := soon(t, "a connection", s.peers)
	peer.say(frameReady, 0, []byte{linkVersion, isReady})
	return peer
}

// serve answers every request of every connection.
func (s *linkServer) serve(answer answerer) {
	for peer := range s.peers {
		peer.say(frameReady, 0, []byte{linkVersion, 1})
		go peer.serve(answer)
	}
}

func (p *linkPeer) serve(answer answerer) {
	for {
		got, err := p.message()
		if err != nil {
			return
		}
		if got.kind == frameAsk {
			asked := p.parsed(got)
			response, _ := answer(context.Background(), asked.request)
			p.answer(asked.id, response)
		}
	}
}

// message returns the next one that is no heartbeat, of all its pieces.
func (p *linkPeer) message() (frame, error) {
	for {
		got, err := readFrame(p.source, frameAsk, framePing)
		if err != nil {
			return got, err
		}
		switch got.kind {
		case framePing:
			if !p.isMute {
				p.say(framePong, got.id, nil)
			}
		case frameMore:
			p.pieces[got.id] = append(p.pieces[got.id], got.body...)
		case frameCancel:
			delete(p.pieces, got.id)
			return got, nil
		default:
			got.body = append(p.pieces[got.id], got.body...)
			delete(p.pieces, got.id)
			return got, nil
		}
	}
}

// say sends a message. A peer that does not take it has its own tests to fail.
func (p *linkPeer) say(kind byte, id uint64, body []byte) {
	for len(body) > mostPieceBytes {
		_, _ = p.raw.Write(append(appendHead(nil, mostPieceBytes, frameMoreBack, id), body[:mostPieceBytes]...))
		body = body[mostPieceBytes:]
	}
	_, _ = p.raw.Write(append(appendHead(nil, len(body), kind, id), body...))
}

func (p *linkPeer) answer(id uint64, response *pipelinepb.Response) {
	body, err := proto.Marshal(response)
	if err != nil {
		p.t.Error(err)
	}
	p.say(frameAnswer, id, body)
}

func (p *linkPeer) fail(id uint64, status uint16, code int32, text string) {
	body := binary.BigEndian.AppendUint16(nil, status)
	body = binary.BigEndian.AppendUint32(body, uint32(code))
	retryAfter := uint16(0)
	if errorCode(code) == codeOverloaded {
		retryAfter = 7
	}
	p.say(frameFailure, id, append(binary.BigEndian.AppendUint16(body, retryAfter), text...))
}

// hear returns the next frame.
func (p *linkPeer) hear() frame {
	p.t.Helper()
	_ = p.raw.SetReadDeadline(time.Now().Add(testPatience))
	got, err := p.message()
	if err != nil {
		p.t.Fatal(err)
	}
	return got
}

// asked returns the next request.
func (p *linkPeer) asked() linkAsked {
	p.t.Helper()
	got := p.hear()
	if got.kind != frameAsk {
		p.t.Fatalf("a frame of kind %d", got.kind)
	}
	return p.parsed(got)
}

func (p *linkPeer) parsed(got frame) linkAsked {
	message := askedBytes + int(binary.BigEndian.Uint16(got.body[8:]))
	asked := linkAsked{
		id:      got.id,
		timeout: time.Duration(binary.BigEndian.Uint64(got.body)),
		trace:   string(got.body[askedBytes:message]),
		request: &pipelinepb.Request{},
	}
	if p.wantsHeaders {
		start := message + 2
		message = start + int(binary.BigEndian.Uint16(got.body[message:]))
		asked.headers = strings.Split(strings.TrimSuffix(string(got.body[start:message]), "\n"), "\n")
	}
	if err := proto.Unmarshal(got.body[message:], asked.request); err != nil {
		p.t.Error(err)
	}
	return asked
}

// soon returns what comes over a channel.
func soon[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(testPatience):
		t.Fatalf("waited in vain: %s", what)
		panic("Fatalf returns to nobody")
	}
}

// watched is a link that is kept, and what it reports.
type watched struct {
	*link
	reports chan health
	ticks   chan time.Time
}

func startLink(t *testing.T, path string) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ticks := make(chan time.Time)
	by := beats{2, func() (<-chan time.Time, func()) { return ticks, func() {} }, 2 * time.Second}
	w := &watched{newLink(endpoint{"unix", path}, by), make(chan health, 64), ticks}
	ended := make(chan struct{})
	go func() {
		w.watch(ctx, func(now health) { w.reports <- now })
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		soon(t, "the end of a link", ended)
	})
	return w
}

// reporting waits for a report of a state, and returns it.
func (w *watched) reporting(t *testing.T, wanted state) health {
	t.Helper()
	for {
		if now := soon(t, "a report", w.reports); now.state == wanted {
			return now
		}
	}
}

// startPair returns the two ends of a link that serves.
func startPair(t *testing.T) (*watched, *linkPeer) {
	t.Helper()
	server := startLinkServer(t, "")
	client := startLink(t, server.path)
	peer := server.peer(t, 1)
	client.reporting(t, stateServing)
	return client, peer
}

// outcome is what became of a request.
type outcome struct {
	response *pipelinepb.Response
	err      error
}

// asking asks for a text in the background.
func (w *watched) asking(ctx context.Context, text string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		response, err := w.ask(ctx, requestOf(text), nil, deadline{})
		done <- outcome{response, err}
	}()
	return done
}

func requestOf(text string) *pipelinepb.Request {
	return &pipelinepb.Request{Key: []string{"k"}, Value: []string{text}}
}

func responseOf(text string) *pipelinepb.Response {
	return &pipelinepb.Response{Key: []string{"k"}, Value: []string{text}}
}
