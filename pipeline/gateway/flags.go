package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// config is what the command line says. It is made once and never changed.
type config struct {
	backends        []backendAddress
	listen          string // host:port
	listenFD        int    // of an inherited socket; noFD: listen says where
	hasParent       bool   // stdin is the life line to it
	maxMessageBytes int64  // of a request's body
	maxJSONBytes    int64  // of an inference's, unpacked, and of its answer
	timeout         time.Duration
	slack           time.Duration
	grace           time.Duration
	drainDelay      time.Duration // between "not ready" and the end of listening
	tls             tlsFiles
	backendTLS      backendTLSFiles
	h2c             bool
	gzipMinBytes    int    // 0: answers are sent as they are
	accessLogSample uint64 // 0: nothing is logged
	backendMetrics  bool
	trustedProxies  proxyList
	patience        time.Duration // for a request to arrive, from its first byte to its last
	headPatience    time.Duration // for its head

	maxConnections   int
	maxBufferedBytes int64         // of requests and answers, all together
	writeTimeout     time.Duration // for a caller to take anything of its answer
	handshakeTimeout time.Duration // of TLS
	stallTimeout     time.Duration // for a backend to say anything
}

const (
	noFD                   = -1
	defaultMaxMessageBytes = 256 << 20
	defaultListen          = ":8080"
	defaultSlack           = 250 * time.Millisecond
	defaultGrace           = 30 * time.Second
	defaultMaxJSONBytes    = 16 << 20
	defaultMaxConnections  = 8192
	defaultWriteTimeout    = 30 * time.Second
	defaultStallTimeout    = 2 * time.Second
	leastStallTimeout      = 100 * time.Millisecond
	patience               = 60 * time.Second
	headPatience           = 10 * time.Second
	handshakeTimeout       = 5 * time.Second
)

// errVersion says that --version was asked for.
var errVersion = errors.New("version requested")

// backendList is the flag --backend, which may be given several times.
type backendList []backendAddress

func (l *backendList) String() string { return "" }

func (l *backendList) Set(text string) error {
	address, err := parseBackend(text)
	if err != nil {
		return err
	}
	for _, other := range *l {
		if other.name == address.name {
			return fmt.Errorf("backend %s is given twice", address.name)
		}
	}
	*l = append(*l, address)
	return nil
}

// newFlags returns the options of the command line, which write to cfg.
func newFlags(cfg *config, backends *backendList, wantsVersion *bool) *flag.FlagSet {
	flags := flag.NewFlagSet("pipeline-gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Var(backends, "backend", "`address` of a pipeline server: host:rpc_port[/http_port], unix:GRPC_SOCKET[,HTTP_SOCKET], or link:SOCKET[,HTTP_SOCKET] as the server starts it; repeatable")
	flags.StringVar(&cfg.listen, "listen", defaultListen, "host:port to listen on; port 0 is any free one")
	flags.IntVar(&cfg.listenFD, "listen-fd", noFD, "number of an inherited listening socket, instead of --listen")
	flags.BoolVar(&cfg.hasParent, "parent", false, "stdin is the life line to the parent: the gateway ends with it")
	flags.Int64Var(&cfg.maxMessageBytes, "max-message-bytes", defaultMaxMessageBytes, "limit of a request's body, unpacked")
	flags.Int64Var(&cfg.maxJSONBytes, "max-json-bytes", defaultMaxJSONBytes, "limit of the JSON of an inference, unpacked, and of its answer")
	flags.Int64Var(&cfg.maxBufferedBytes, "max-buffered-bytes", 0, "bytes of requests and answers to hold at once; 0: 512 MiB or 12 times --max-json-bytes, and at most half of what the control group allows")
	flags.IntVar(&cfg.maxConnections, "max-connections", defaultMaxConnections, "callers' connections at once, at most half of the open files that are allowed")
	flags.DurationVar(&cfg.writeTimeout, "write-timeout", defaultWriteTimeout, "a caller that takes nothing of its answer for so long is given up")
	flags.DurationVar(&cfg.timeout, "timeout", 0, "deadline of a request without Grpc-Timeout; 0: none")
	flags.DurationVar(&cfg.stallTimeout, "stall-timeout", defaultStallTimeout, "a backend that answers no heartbeat for so long is given up, and gets nothing new after half of it")
	flags.DurationVar(&cfg.slack, "slack", defaultSlack, "wait beyond a deadline for the backend's own answer to it")
	flags.DurationVar(&cfg.grace, "grace", defaultGrace, "time that a stopping gateway gives requests in flight")
	flags.DurationVar(&cfg.drainDelay, "drain-delay", 0, "time for which a stopping gateway says not ready and goes on serving")
	flags.StringVar(&cfg.tls.cert, "tls-cert", "", "PEM `file`: serve TLS (HTTP/1.1 and HTTP/2) with this certificate")
	flags.StringVar(&cfg.tls.key, "tls-key", "", "PEM `file` of its key")
	flags.StringVar(&cfg.tls.clientCA, "tls-client-ca", "", "PEM `file`: callers need a certificate of this authority")
	flags.BoolVar(&cfg.backendTLS.enabled, "backend-tls", false, "speak TLS to the backends, gRPC and HTTP")
	flags.StringVar(&cfg.backendTLS.ca, "backend-ca", "", "PEM `file` of their authority; default: the system's")
	flags.StringVar(&cfg.backendTLS.cert, "backend-cert", "", "PEM `file` of our certificate for them")
	flags.StringVar(&cfg.backendTLS.key, "backend-key", "", "PEM `file` of its key")
	flags.StringVar(&cfg.backendTLS.serverName, "backend-server-name", "", "`name` that their certificates must have; default: the host")
	flags.BoolVar(&cfg.h2c, "h2c", false, "accept HTTP/2 without TLS")
	flags.IntVar(&cfg.gzipMinBytes, "gzip-min-bytes", 0, "gzip answers of at least so many bytes for who accepts it; 0: never")
	flags.Uint64Var(&cfg.accessLogSample, "access-log-sample", 0, "log every n-th request; 0: none")
	flags.BoolVar(&cfg.backendMetrics, "backend-metrics", false, "append a backend's /metrics to ours")
	flags.Var(&cfg.trustedProxies, "trusted-proxy", "`address` or network of a proxy whose X-Forwarded-* are believed; repeatable")
	flags.BoolVar(wantsVersion, "version", false, "print the version")
	return flags
}

// parseFlags reads a command line. Its errors say which option is wrong, and how.
func parseFlags(args []string) (config, error) {
	cfg := config{patience: patience, headPatience: headPatience, handshakeTimeout: handshakeTimeout}
	var backends backendList
	var wantsVersion bool
	flags := newFlags(&cfg, &backends, &wantsVersion)
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	if wantsVersion {
		return config{}, errVersion
	}
	if flags.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	cfg.backends = backends
	isListenSet := false
	flags.Visit(func(f *flag.Flag) { isListenSet = isListenSet || f.Name == "listen" })
	if isListenSet && cfg.listenFD != noFD {
		return config{}, errors.New("--listen and --listen-fd exclude each other: give one")
	}
	if err := cfg.check(); err != nil {
		return config{}, err
	}
	if cfg.maxBufferedBytes == 0 {
		cfg.maxBufferedBytes = budgetFor(cfg.jsonLimit().bytes, memoryLimit())
	}
	cfg.maxConnections = max(1, min(cfg.maxConnections, mostOpenFiles()/2))
	return cfg, nil
}

// check returns what is wrong with options that are readable each.
func (c *config) check() error {
	switch {
	case len(c.backends) == 0:
		return errors.New("no backend: give --backend host:rpc_port[/http_port] at least once")
	case c.maxMessageBytes < 1 || c.maxMessageBytes > math.MaxInt32:
		return fmt.Errorf("--max-message-bytes %d is not in 1..%d", c.maxMessageBytes, math.MaxInt32)
	case c.maxJSONBytes < 1 || c.maxJSONBytes > math.MaxInt32:
		return fmt.Errorf("--max-json-bytes %d is not in 1..%d", c.maxJSONBytes, math.MaxInt32)
	case c.maxBufferedBytes != 0 && c.maxBufferedBytes < leastBufferedBytes:
		return fmt.Errorf("--max-buffered-bytes %d is less than %d", c.maxBufferedBytes, leastBufferedBytes)
	case c.maxConnections < 1:
		return fmt.Errorf("--max-connections %d is less than 1", c.maxConnections)
	case c.writeTimeout <= 0:
		return errors.New("--write-timeout must be positive")
	case c.stallTimeout < leastStallTimeout:
		return fmt.Errorf("--stall-timeout %v is less than %v", c.stallTimeout, leastStallTimeout)
	case c.timeout < 0 || c.slack < 0 || c.grace < 0 || c.drainDelay < 0:
		return errors.New("--timeout, --slack, --grace and --drain-delay must not be negative")
	case c.listenFD < noFD:
		return fmt.Errorf("--listen-fd %d is no descriptor", c.listenFD)
	case c.gzipMinBytes < 0:
		return fmt.Errorf("--gzip-min-bytes %d must not be negative", c.gzipMinBytes)
	case (c.tls.cert == "") != (c.tls.key == ""):
		return errors.New("--tls-cert and --tls-key belong together: give both")
	case c.tls.clientCA != "" && c.tls.cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case (c.backendTLS.cert == "") != (c.backendTLS.key == ""):
		return errors.New("--backend-cert and --backend-key belong together: give both")
	case !c.backendTLS.enabled && c.backendTLS != backendTLSFiles{}:
		return errors.New("--backend-ca, --backend-cert, --backend-key and --backend-server-name need --backend-tls")
	case c.backendTLS.enabled && slices.ContainsFunc(c.backends, func(each backendAddress) bool { return each.isLink }):
		return errors.New("--backend-tls: a link is not encrypted; give host:rpc_port[/http_port]")
	}
	return nil
}

// usage returns the text of --help.
func usage() string {
	var text bytes.Buffer
	text.WriteString("pipeline-gateway: HTTP in front of pipeline servers.\n\n" +
		"  pipeline-gateway --backend host:rpc_port/http_port [--backend ...] [--listen host:port]\n\n")
	var cfg config
	var backends backendList
	flags := newFlags(&cfg, &backends, new(bool))
	flags.SetOutput(&text)
	flags.PrintDefaults()
	return text.String()
}
