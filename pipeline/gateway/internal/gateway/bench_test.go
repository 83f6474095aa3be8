package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/edge"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/metrics"
	"pipeline/gateway/internal/upstream"
)

// instant is an upstream that answers at once.
type instant struct {
	upstream.Upstream // nothing else is asked of it
	traits            upstream.Traits
	protobuf, json    []byte
}

func (i *instant) Unary(_ context.Context, call *upstream.Call) (upstream.Reply, error) {
	if call.Method == upstream.JSON {
		return upstream.Reply{Data: i.json}, nil
	}
	return upstream.Reply{Data: i.protobuf}, nil
}

func (i *instant) Traits() upstream.Traits { return i.traits }
func (*instant) Close()                    {}

func (*instant) Watch(ctx context.Context, report func(upstream.Health)) {
	report(upstream.Health{State: upstream.StateServing})
	<-ctx.Done()
}

// BenchmarkInference has callers ask over connections of their own; upstreams take no time.
func BenchmarkInference(b *testing.B) {
	answer, _ := proto.Marshal(gatewaytest.ResponseOf("1"))
	own := &instant{protobuf: answer, json: []byte(`{"err_no":0,"err_msg":"","key":["k"],"value":["1"],"tensors":[]}`)}
	for name, traits := range map[string]upstream.Traits{
		"elsewhere": {}, "local": {IsLocal: true}, "local JSON": {IsLocal: true, TakesJSON: true},
	} {
		b.Run(name, func(b *testing.B) {
			own.traits = traits
			cfg, err := config.Parse([]string{"--listen", "127.0.0.1:0", "--backend", "link:/unused"})
			if err != nil {
				b.Fatal(err)
			}
			log, stats := slog.New(slog.DiscardHandler), metrics.New()
			pool, err := upstream.NewPool(cfg, func(config.Backend, *config.BackendTLS) (upstream.Upstream, error) { return own, nil }, log, stats)
			if err != nil {
				b.Fatal(err)
			}
			pool.Start()
			defer pool.Close()
			handler, err := edge.NewHandler(cfg, log, pool, stats, nil)
			if err != nil {
				b.Fatal(err)
			}
			<-pool.Serving
			benchmarkServer(b, handler, cfg, stats)
		})
	}
	b.Run("bare net/http", func(b *testing.B) {
		cfg, _ := config.Parse([]string{"--listen", "127.0.0.1:0", "--backend", "link:/unused"})
		benchmarkServer(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header()["Content-Type"] = []string{"application/json"}
			_, _ = w.Write(own.json)
		}), cfg, nil)
	})
}

func benchmarkServer(b *testing.B, handler http.Handler, cfg config.Config, stats *metrics.Stats) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	if stats == nil {
		go func() { _ = server.Serve(listener) }()
	} else {
		server = edge.NewServer(cfg, handler, slog.New(slog.DiscardHandler))
		go func() { _ = serveOn(server, edge.NewGuard(listener, &cfg, stats), slog.New(slog.DiscardHandler)) }()
	}
	defer server.Close()
	body := gatewaytest.Pair
	request := fmt.Appendf(nil, "POST /svc/prediction HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	b.ReportAllocs()
	b.RunParallel(func(turns *testing.PB) {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		source := bufio.NewReader(conn)
		for turns.Next() {
			if _, err := conn.Write(request); err != nil {
				b.Error(err)
				return
			}
			if status := readAnswer(source); status != 200 {
				b.Errorf("status %d", status)
				return
			}
		}
	})
}

// readAnswer reads one of a known length, and returns its status.
func readAnswer(source *bufio.Reader) (status int) {
	length := 0
	for first := true; ; first = false {
		line, err := source.ReadSlice('\n')
		if err != nil {
			return 0
		}
		switch {
		case first:
			status = int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
		case len(line) == 2:
			_, _ = source.Discard(length)
			return status
		case len(line) > 16 && (line[0]|0x20) == 'c' && (line[8]|0x20) == 'l':
			for _, digit := range line[16 : len(line)-2] {
				length = length*10 + int(digit-'0')
			}
		}
	}
}
