// Linkpeer is the gateway's end of a link for the tests of the server's end: it makes the calls that stdin says, all
// at once, and says on stdout how each ended.
//
//	linkpeer SOCKET [SECRET]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"pipeline/gateway/internal/link"
)

// asked is a line of stdin: a call, of a stream if it has several messages or none.
type asked struct {
	Number   int         `json:"number"`
	Method   string      `json:"method"`
	Caller   string      `json:"caller"`
	Seconds  float64     `json:"seconds"` // negative: none
	Metadata [][2]string `json:"metadata"`
	IsStream bool        `json:"is_stream"`
	Messages [][]byte    `json:"messages"`
}

// told is a line of stdout.
type told struct {
	Number     int         `json:"number"`
	Error      string      `json:"error"`
	Code       uint32      `json:"code"`
	Status     int         `json:"status"`
	ErrNo      int32       `json:"err_no"`
	RetryAfter int         `json:"retry_after_s"`
	Text       string      `json:"text"`
	Trailers   [][2]string `json:"trailers"`
	Messages   [][]byte    `json:"messages"`
}

func main() {
	path, secret := os.Args[1], ""
	if len(os.Args) > 2 {
		secret = os.Args[2]
	}
	client := link.New(link.Config{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		Secret: func() (string, error) { return secret, nil },
		Stall:  time.Minute,
	})
	states := make(chan link.State, 64)
	go client.Watch(context.Background(), func(now link.State) { states <- now })
	if now := <-states; now.Phase == link.Down {
		fmt.Fprintln(os.Stderr, now.Reason)
		os.Exit(1)
	}
	go func() {
		for range states {
		}
	}()
	var calls sync.WaitGroup
	var lock sync.Mutex
	out := json.NewEncoder(os.Stdout)
	for in := json.NewDecoder(os.Stdin); ; {
		var what asked
		if in.Decode(&what) != nil {
			break
		}
		calls.Go(func() {
			answer := ask(client, what)
			lock.Lock()
			defer lock.Unlock()
			_ = out.Encode(answer)
		})
	}
	calls.Wait()
}

func ask(client *link.Client, what asked) told {
	call := &link.Call{Method: what.Method, Caller: what.Caller}
	if what.Seconds >= 0 {
		call.Deadline = time.Now().Add(time.Duration(what.Seconds * float64(time.Second)))
	}
	for _, pair := range what.Metadata {
		call.Metadata = link.AppendField(call.Metadata, pair[0], pair[1])
	}
	if what.IsStream {
		return askStream(client, call, what)
	}
	answer, err := client.Unary(context.Background(), call, what.Messages[0])
	if err != nil {
		return told{Number: what.Number, Error: err.Error()}
	}
	defer answer.Release()
	ended := ending(what.Number, answer.End)
	ended.Messages = [][]byte{append([]byte{}, answer.Data...)}
	return ended
}

func askStream(client *link.Client, call *link.Call, what asked) told {
	stream, err := client.Open(context.Background(), call)
	if err != nil {
		return told{Number: what.Number, Error: err.Error()}
	}
	defer stream.Close()
	go func() {
		for _, message := range what.Messages {
			if stream.Send(message) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	answers := [][]byte{}
	for {
		message, err := stream.Recv()
		if err != nil {
			ended := ending(what.Number, *stream.End())
			ended.Messages, ended.Error = answers, err.Error()
			return ended
		}
		answers = append(answers, message)
	}
}

func ending(number int, end link.End) told {
	said := told{
		Number: number, Code: end.Code, Status: end.Status, ErrNo: end.ErrNo, RetryAfter: end.RetryAfter, Text: end.Text,
		Trailers: [][2]string{},
	}
	for name, value := range end.Trailers.All() {
		said.Trailers = append(said.Trailers, [2]string{name, value})
	}
	return said
}
