package gatewaytest

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

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/pipelinepb"
)

// HeadedPeer returns the server's end of a link on which the server wants headers.
func HeadedPeer(t *testing.T, server *LinkServer) *LinkPeer {
	t.Helper()
	peer := Soon(t, "a connection", server.Peers)
	peer.wantsHeaders = true
	peer.Say(frame.Ready, 0, []byte{frame.HeadedVersion, 1})
	return peer
}

// LinkServer is the server's end of links: a Unix socket.
type LinkServer struct {
	Path  string
	Peers chan *LinkPeer // one for each connection
}

// LinkPeer is the server's end of one connection.
type LinkPeer struct {
	T      *testing.T
	Raw    net.Conn
	Source *bufio.Reader
	Pieces map[uint64][]byte
	IsMute bool // it answers no heartbeat

	wantsHeaders bool // it has said so
}

// LinkAsked is a request as the server sees it.
type LinkAsked struct {
	ID      uint64
	Timeout time.Duration // negative: none was given
	Trace   string
	Headers []string // names and values by turns
	Request *pipelinepb.Request
}

// StartLinkServer listens at a path; "": at any.
func StartLinkServer(t *testing.T, path string) *LinkServer {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "0.link")
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := &LinkServer{path, make(chan *LinkPeer, 16)}
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = raw.Close() })
			server.Peers <- &LinkPeer{T: t, Raw: raw, Source: bufio.NewReader(raw), Pieces: map[uint64][]byte{}}
		}
	}()
	return server
}

// Peer returns the next connection, on which the server has said how it is.
func (s *LinkServer) Peer(t *testing.T, isReady byte) *LinkPeer {
	t.Helper()
	peer := Soon(t, "a connection", s.Peers)
	peer.Say(frame.Ready, 0, []byte{frame.Version, isReady})
	return peer
}

// Serve answers every request of every connection.
func (s *LinkServer) Serve(answer Answerer) {
	for peer := range s.Peers {
		peer.Say(frame.Ready, 0, []byte{frame.Version, 1})
		go peer.serve(answer)
	}
}

func (p *LinkPeer) serve(answer Answerer) {
	for {
		got, err := p.Message()
		if err != nil {
			return
		}
		if got.Kind == frame.Ask {
			asked := p.Parsed(got)
			response, _ := answer(context.Background(), asked.Request)
			p.Answer(asked.ID, response)
		}
	}
}

// Message returns the next one that is no heartbeat, of all its pieces.
func (p *LinkPeer) Message() (frame.Frame, error) {
	for {
		got, err := frame.Read(p.Source, frame.Ask, frame.Ping)
		if err != nil {
			return got, err
		}
		switch got.Kind {
		case frame.Ping:
			if !p.IsMute {
				p.Say(frame.Pong, got.ID, nil)
			}
		case frame.More:
			p.Pieces[got.ID] = append(p.Pieces[got.ID], got.Body...)
		case frame.Cancel:
			delete(p.Pieces, got.ID)
			return got, nil
		default:
			got.Body = append(p.Pieces[got.ID], got.Body...)
			delete(p.Pieces, got.ID)
			return got, nil
		}
	}
}

// Say sends a message. A peer that does not take it has its own tests to fail.
func (p *LinkPeer) Say(kind byte, id uint64, body []byte) {
	for len(body) > frame.MostPieceBytes {
		_, _ = p.Raw.Write(append(frame.AppendHead(nil, frame.MostPieceBytes, frame.MoreBack, id), body[:frame.MostPieceBytes]...))
		body = body[frame.MostPieceBytes:]
	}
	_, _ = p.Raw.Write(append(frame.AppendHead(nil, len(body), kind, id), body...))
}

func (p *LinkPeer) Answer(id uint64, response *pipelinepb.Response) {
	body, err := proto.Marshal(response)
	if err != nil {
		p.T.Error(err)
	}
	p.Say(frame.Answer, id, body)
}

func (p *LinkPeer) Fail(id uint64, status uint16, code int32, text string) {
	body := binary.BigEndian.AppendUint16(nil, status)
	body = binary.BigEndian.AppendUint32(body, uint32(code))
	retryAfter := uint16(0)
	if failure.ErrNo(code) == failure.CodeOverloaded {
		retryAfter = 7
	}
	p.Say(frame.Failure, id, append(binary.BigEndian.AppendUint16(body, retryAfter), text...))
}

// Hear returns the next frame.
func (p *LinkPeer) Hear() frame.Frame {
	p.T.Helper()
	_ = p.Raw.SetReadDeadline(time.Now().Add(Patience))
	got, err := p.Message()
	if err != nil {
		p.T.Fatal(err)
	}
	return got
}

// Asked returns the next request.
func (p *LinkPeer) Asked() LinkAsked {
	p.T.Helper()
	got := p.Hear()
	if got.Kind != frame.Ask {
		p.T.Fatalf("a frame of kind %d", got.Kind)
	}
	return p.Parsed(got)
}

func (p *LinkPeer) Parsed(got frame.Frame) LinkAsked {
	message := frame.AskedBytes + int(binary.BigEndian.Uint16(got.Body[8:]))
	asked := LinkAsked{
		ID:      got.ID,
		Timeout: time.Duration(binary.BigEndian.Uint64(got.Body)),
		Trace:   string(got.Body[frame.AskedBytes:message]),
		Request: &pipelinepb.Request{},
	}
	if p.wantsHeaders {
		start := message + 2
		message = start + int(binary.BigEndian.Uint16(got.Body[message:]))
		asked.Headers = strings.Split(strings.TrimSuffix(string(got.Body[start:message]), "\n"), "\n")
	}
	if err := proto.Unmarshal(got.Body[message:], asked.Request); err != nil {
		p.T.Error(err)
	}
	return asked
}

// StormBudget is what the gateway may hold in a storm.
const StormBudget = 24 << 20

// ServeBadly answers some requests of every connection, and others not, or not as it should.
func (s *LinkServer) ServeBadly() {
	for peer := range s.Peers {
		peer.Say(frame.Ready, 0, []byte{frame.Version, 1})
		go peer.serveBadly()
	}
}

func (p *LinkPeer) serveBadly() {
	for turn := 0; ; {
		got, err := p.Message()
		if err != nil {
			return
		}
		if got.Kind != frame.Ask {
			continue
		}
		turn++
		switch turn % 8 {
		case 0: // in the middle of an answer
			p.Say(frame.MoreBack, got.ID, make([]byte, frame.MostPieceBytes))
			_ = p.Raw.Close()
			return
		case 1:
			p.Fail(got.ID, 500, int32(failure.CodeUnknown), "broken")
		case 2: // never
		case 3: // never all of it
			p.Say(frame.MoreBack, got.ID, make([]byte, frame.MostPieceBytes))
		case 4:
			p.Answer(got.ID, ResponseOf(strings.Repeat("x", StormBudget)))
		case 5:
			p.Answer(got.ID+1<<40, ResponseOf("nobody's"))
			p.Answer(got.ID, ResponseOf(strings.Repeat("x", 1<<20)))
			p.Answer(got.ID, ResponseOf("again"))
		case 6:
			p.Say(frame.Answer, got.ID, []byte("no protobuf"))
		default:
			p.Answer(got.ID, ResponseOf("x"))
		}
	}
}
