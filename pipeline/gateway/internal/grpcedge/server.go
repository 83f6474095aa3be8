package grpcedge

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/accesslog"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/tracing"
)

const (
	mostMetadata  = 64 << 10         // bytes, as the gRPC port inside a server has it: tokens are long
	mostHeaders   = 128 << 10        // bytes, with 32 for each; who sends more loses the stream, or the connection
	streamsAtOnce = 512              // of a connection; callers wait for one to end
	pingAfter     = 30 * time.Second // of silence
	pingFor       = 10 * time.Second
	ioBytes       = 16 << 10              // of each connection's buffers
	windowBytes   = 1 << 20               // of messages on their way, of a call and of a connection
	mostEarly     = 10 * time.Millisecond // before a caller's deadline
	streamWorkers = 64                    // goroutines that are kept, whose stacks have grown; more come and go
)

// Upstreams says who can be asked.
type Upstreams interface {
	// Links returns the reachable ones, in the order in which a new call asks them.
	Links() []*link.Client
}

// Config says how callers are served.
type Config struct {
	Services         []string      // full names of the methods that the servers have
	MaxMessageBytes  int           // of a message, unpacked, both ways
	MaxConnections   int           // more wait to be accepted
	HandshakeTimeout time.Duration // for a new connection to say what it speaks
	TLS              *tls.Config   // nil: none
	Budget           *memory.Budget
	Gate             *access.Gate // nil: everybody may come in
	Remote           Remote       // of servers elsewhere; nil: all of them are reached by links
	FindSteps        bool         // it matters to it to which sequence a call belongs
	Trust            config.Trust
	Side             access.Side         // of our own port
	HungUp           func(reason string) // told of a connection that was ended for too many frames

	Tracing *tracing.Beginner // nil: no trace is begun
	Log     *accesslog.Log

	// Observe receives each call that is over; the method is "" if there is no method of that name.
	Observe func(method string, code codes.Code, took time.Duration)
}

// Server is the edge for gRPC.
type Server struct {
	config    Config
	upstreams Upstreams
	health    *healthService
	server    *grpc.Server
	mounted   *grpc.Server       // for calls that an HTTP server was sent
	stop      context.CancelFunc // of what never ends by itself
	stopping  context.Context
}

// New returns an edge that is not ready.
func New(config Config, upstreams Upstreams) *Server {
	s := &Server{config: config, upstreams: upstreams}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.health = newHealth(s.stopping, config.Services)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(s.handle),
		grpc.MaxRecvMsgSize(config.MaxMessageBytes),
		grpc.MaxHeaderListSize(mostHeaders),
		grpc.MaxConcurrentStreams(streamsAtOnce),
		grpc.ConnectionTimeout(config.HandshakeTimeout),
		// Fixed windows: else gRPC asks for the time of each way by a PING beside every message.
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ReadBufferSize(ioBytes),
		grpc.WriteBufferSize(ioBytes),
		grpc.SharedWriteBuffer(true), // an idle connection holds none
		grpc.ChainStreamInterceptor(s.letIn, s.endReflection),
		grpc.UnaryInterceptor(s.letInUnary), // of health
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingFor}),
	}
	s.mounted = s.newServer(options)
	options = append(options, grpc.Creds(newGuardedCredentials(config.TLS, config.HungUp)))
	s.server = s.newServer(options)
	return s
}

func (s *Server) newServer(options []grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(server, s.health)
	addReflection(server, s.config.Services)
	return server
}

// IsCall says whether an HTTP request is a call of gRPC.
func IsCall(r *http.Request) bool {
	kind, isGRPC := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return isGRPC && r.ProtoMajor == 2 && (kind == "" || kind[0] == '+' || kind[0] == ';')
}

// ServeHTTP answers a call that an HTTP server was sent. Stop knows nothing of it: the server has to be shut
// down first.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mounted.ServeHTTP(w, r) }

// EndStreams says not ready, and ends the streams that would never end by themselves.
func (s *Server) EndStreams() {
	s.Drain()
	s.stop()
}

// Serve takes connections until Stop.
func (s *Server) Serve(listener net.Listener) error {
	limited := netutil.LimitListener(listener, s.config.MaxConnections)
	if err := s.server.Serve(limited); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// SetReady tells all who ask for our health.
func (s *Server) SetReady(isReady bool) { s.health.set(isReady) }

// Drain says not ready from now on.
func (s *Server) Drain() { s.health.Shutdown() }

// Stop takes no more calls: callers are sent elsewhere, and calls in flight continue until ctx ends. It
// reports whether all of them ended well.
func (s *Server) Stop(ctx context.Context) bool {
	s.EndStreams()
	done := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		s.server.Stop()
		<-done
		return false
	}
}
