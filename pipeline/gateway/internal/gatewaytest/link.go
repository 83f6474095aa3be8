package gatewaytest

import (
	"bufio"
	"context"
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
	said := greeting()
	said.Headers = true
	peer.Meet(said, true)
	return peer
}

// greeting is what a server says of itself.
func greeting() frame.Greeting {
	return frame.Greeting{
		Version: frame.Version,
		Limits:  frame.Limits{CallCredit: frame.CallCredit, StreamCredit: frame.StreamCredit},
		Methods: []frame.Entry{{ID: 1, Name: "inference"}, {ID: 2, Name: LinkStream, IsStream: true},
			{ID: 3, Name: pipelinepb.PipelineService_Inference_FullMethodName}, {ID: 4, Name: LinkUnary}},
		Trace: true,
	}
}

// LinkStream is a method with a stream of messages.
const LinkStream = "/test.Service/Stream"

// LinkUnary is a method that is for admins, as all are whose role nobody has said.
const LinkUnary = "/test.Service/Ask"

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

	opened map[uint64]frame.Frame // whose message has not arrived in whole
}

// LinkAsked is a request as the server sees it.
type LinkAsked struct {
	ID      uint64
	Timeout time.Duration // negative: none was given
	Trace   string
	Caller  string
	Headers []string // names and values by turns
	Data    []byte
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
			server.Peers <- &LinkPeer{T: t, Raw: raw, Source: bufio.NewReader(raw), Pieces: map[uint64][]byte{}, opened: map[uint64]frame.Frame{}}
		}
	}()
	return server
}

// Peer returns the next connection, on which the server has said how it is.
func (s *LinkServer) Peer(t *testing.T, isReady byte) *LinkPeer {
	t.Helper()
	peer := Soon(t, "a connection", s.Peers)
	peer.Meet(greeting(), isReady == 1)
	return peer
}

// Meet says HELLO, and how the server is.
func (p *LinkPeer) Meet(said frame.Greeting, isReady bool) {
	p.Write(frame.AppendState(frame.AppendGreeting(nil, said), isReady, 0))
}

// State says how the server is.
func (p *LinkPeer) State(isReady bool) { p.Write(frame.AppendState(nil, isReady, 0)) }

// Serve answers every request of every connection.
func (s *LinkServer) Serve(answer Answerer) {
	for peer := range s.Peers {
		peer.Meet(greeting(), true)
		go peer.serve(answer)
	}
}

func (p *LinkPeer) serve(answer Answerer) {
	for {
		got, err := p.Message()
		if err != nil {
			return
		}
		if got.Kind == frame.Open {
			asked := p.Parsed(got)
			response, _ := answer(context.Background(), asked.Request)
			p.Answer(asked.ID, response)
		}
	}
}

// Message returns the next frame that says something: a call with all of its message, a message of a stream, a
// RESET. For what is read credit is given back.
func (p *LinkPeer) Message() (frame.Frame, error) {
	for {
		got, err := frame.Read(p.Source)
		if err != nil {
			return got, err
		}
		switch got.Kind {
		case frame.Ping:
			if !p.IsMute {
				p.Write(frame.Append(nil, frame.Pong, 0, got.ID, nil))
			}
		case frame.Hello, frame.Pong, frame.Credit, frame.Freed:
		case frame.Reset:
			delete(p.Pieces, got.ID)
			delete(p.opened, got.ID)
			return got, nil
		case frame.Open:
			if !got.Has(frame.More) {
				return got, nil
			}
			p.opened[got.ID] = got
		default:
			if size := int64(len(got.Body.Data)); size > 0 {
				p.Write(frame.AppendCredit(frame.AppendCredit(nil, 0, size), got.ID, size))
			}
			p.Pieces[got.ID] = append(p.Pieces[got.ID], got.Body.Data...)
			if got.Has(frame.More) {
				continue
			}
			if opened, isThere := p.opened[got.ID]; isThere {
				opened.Flags = got.Flags
				delete(p.opened, got.ID)
				got = opened
			} else {
				got.Body.Data = got.Body.Data[:0]
			}
			got.Body.Data = append(got.Body.Data, p.Pieces[got.ID]...)
			delete(p.Pieces, got.ID)
			return got, nil
		}
	}
}

// Write sends bytes. A gateway that does not take them has its own tests to fail.
func (p *LinkPeer) Write(data []byte) { _, _ = p.Raw.Write(data) }

// Say sends a message as DATA, in pieces for which nobody asks for credit.
func (p *LinkPeer) Say(id uint64, message []byte) {
	for len(message) > frame.MaxBytes {
		p.Write(frame.Append(nil, frame.Data, frame.Message|frame.More, id, message[:frame.MaxBytes]))
		message = message[frame.MaxBytes:]
	}
	p.Write(frame.Append(nil, frame.Data, frame.Message, id, message))
}

// SayPiece sends a piece of a message of which more would follow.
func (p *LinkPeer) SayPiece(id uint64, piece []byte) {
	p.Write(frame.Append(nil, frame.Data, frame.Message|frame.More, id, piece))
}

var wentWell = frame.Ended{Status: 200}

// Answer answers a call, and ends it.
func (p *LinkPeer) Answer(id uint64, response *pipelinepb.Response) {
	body, err := proto.Marshal(response)
	if err != nil {
		p.T.Error(err)
	}
	p.AnswerBytes(id, body)
}

// AnswerBytes answers a call with bytes, and ends it.
func (p *LinkPeer) AnswerBytes(id uint64, body []byte) {
	if len(body) > frame.MaxBytes-frame.EndBytes {
		p.Say(id, body)
		body = nil
	} else if body == nil {
		body = []byte{}
	}
	p.Write(frame.AppendEnd(nil, id, wentWell, body))
}

// Fail ends a call with a failure.
func (p *LinkPeer) Fail(id uint64, status uint16, code int32, text string) {
	end := frame.Ended{Code: 13, Status: int(status), ErrNo: code, Text: text}
	if failure.ErrNo(code) == failure.CodeOverloaded {
		end.RetryAfter = 7
	}
	p.Write(frame.AppendEnd(nil, id, end, nil))
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
func (p *LinkPeer) Asked() LinkAsked { return p.asRequest(p.AskedBytes()) }

// AskedBytes returns the next request, whose message may be anything.
func (p *LinkPeer) AskedBytes() LinkAsked {
	p.T.Helper()
	got := p.Hear()
	if got.Kind != frame.Open {
		p.T.Fatalf("a frame of kind %d", got.Kind)
	}
	return p.opening(got)
}

// Parsed returns the request of an OPEN.
func (p *LinkPeer) Parsed(got frame.Frame) LinkAsked { return p.asRequest(p.opening(got)) }

func (p *LinkPeer) asRequest(asked LinkAsked) LinkAsked {
	asked.Request = &pipelinepb.Request{}
	if err := proto.Unmarshal(asked.Data, asked.Request); err != nil {
		p.T.Error(err)
	}
	return asked
}

func (p *LinkPeer) opening(got frame.Frame) LinkAsked {
	timeout, opened, data, err := frame.ReadOpen(got.Body.Data)
	if err != nil {
		p.T.Error(err)
	}
	asked := LinkAsked{ID: got.ID, Timeout: timeout, Caller: opened.Caller, Data: data}
	for name, value := range frame.Fields(opened.Metadata).All() {
		asked.Headers = append(asked.Headers, name, value)
		if name == "traceparent" {
			asked.Trace = value
		}
	}
	return asked
}

// StormBudget is what the gateway may hold in a storm.
const StormBudget = 24 << 20

// ServeBadly answers some requests of every connection, and others not, or not as it should.
func (s *LinkServer) ServeBadly() {
	for peer := range s.Peers {
		peer.Meet(greeting(), true)
		go peer.serveBadly()
	}
}

func (p *LinkPeer) serveBadly() {
	for turn := 0; ; {
		got, err := p.Message()
		if err != nil {
			return
		}
		if got.Kind != frame.Open {
			continue
		}
		turn++
		switch turn % 8 {
		case 0: // in the middle of an answer
			p.SayPiece(got.ID, make([]byte, frame.MaxBytes))
			_ = p.Raw.Close()
			return
		case 1:
			p.Fail(got.ID, 500, int32(failure.CodeUnknown), "broken")
		case 2: // never
		case 3: // never all of it
			p.SayPiece(got.ID, make([]byte, frame.MaxBytes))
		case 4:
			p.Answer(got.ID, ResponseOf(strings.Repeat("x", StormBudget)))
		case 5:
			p.Answer(0, ResponseOf("of no request"))
			p.Answer(got.ID, ResponseOf(strings.Repeat("x", 1<<20)))
			p.Answer(got.ID, ResponseOf("again"))
		case 6:
			p.AnswerBytes(got.ID, []byte("no protobuf"))
		default:
			p.Answer(got.ID, ResponseOf("x"))
		}
	}
}

// RequestBytes is a Request with a text.
func RequestBytes(text string) []byte {
	data, err := proto.Marshal(RequestOf(text))
	if err != nil {
		panic(err)
	}
	return data
}

// TextOf returns the text of a Response.
func TextOf(data []byte) string {
	response := &pipelinepb.Response{}
	if err := proto.Unmarshal(data, response); err != nil {
		return err.Error()
	}
	return response.Value[0]
}
