// Package config reads the command line.
package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/sockets"
)

// Config holds the options of the command line. It never changes.
type Config struct {
	Backends        []Backend
	BackendsFile    string // names more of them, and is looked at again; "": none
	Lookups         []Lookup
	DNSInterval     time.Duration // between two looks at a name
	Balancing       Balancing
	HTTP            Socket
	GRPC            Socket // gRPC is taken only where it says so
	Admin           Socket // "": all is on the others
	OnePort         bool   // gRPC is taken where HTTP is
	HasParent       bool   // stdin is the life line to it
	ConnectedIsUp   bool   // the parent is notified that we are ready when a backend is connected, ready or not
	MaxMessageBytes int64  // of a request's body
	MaxJSONBytes    int64  // of an inference's, unpacked, and of its answer
	Timeout         time.Duration
	Slack           time.Duration
	Grace           time.Duration
	DrainDelay      time.Duration // between "not ready" and the end of listening
	TLS             tlsFiles
	BackendTLS      backendTLSFiles
	H2C             bool
	GzipMinBytes    int    // 0: answers are not compressed
	AccessLogSample uint64 // 0: nothing is logged
	LogFormat       string // TextLog or JSONLog
	TracesPerS      int    // that are begun and recorded, where callers have begun none; 0: none is begun
	BackendMetrics  bool
	Access          string // file that says who may do what; "": everybody everything
	Trust           Trust
	CORS            CORS
	Patience        time.Duration // for a request's body to arrive, beside what its bytes earn it
	MinUploadRate   int64         // bytes a second that earn it more
	HeadPatience    time.Duration // for its head

	MaxConnections   int
	MaxBufferedBytes int64         // of requests and answers, all together
	WriteTimeout     time.Duration // for a caller to take anything of its answer
	HandshakeTimeout time.Duration // of TLS
	StallTimeout     time.Duration // for a backend to say anything
}

const (
	defaultMaxMessageBytes = 256 << 20
	DefaultListen          = ":8080"
	defaultSlack           = 250 * time.Millisecond
	defaultGrace           = 30 * time.Second
	defaultMaxJSONBytes    = 16 << 20
	defaultMaxConnections  = 8192
	defaultWriteTimeout    = 30 * time.Second
	defaultStallTimeout    = 2 * time.Second
	defaultDNSInterval     = 5 * time.Second
	defaultMinUploadRate   = 1 << 10
	leastStallTimeout      = 100 * time.Millisecond
	patience               = 60 * time.Second
	headPatience           = 10 * time.Second
	handshakeTimeout       = 5 * time.Second
)

// Formats of log lines.
const (
	TextLog = "text"
	JSONLog = "json"
)

// ErrVersion reports that --version was given.
var ErrVersion = errors.New("version requested")

// backendList is the flag --backend, which may be given several times.
type backendList struct {
	fixed   []Backend
	lookups []Lookup
}

func (l *backendList) String() string { return "" }

func (l *backendList) Set(text string) error {
	lookup, isLookup, err := parseLookup(text)
	if isLookup {
		if slices.ContainsFunc(l.lookups, func(other Lookup) bool { return other.Text == text }) {
			return fmt.Errorf("backend %s is given twice", text)
		}
		l.lookups = append(l.lookups, lookup)
		return err
	}
	address, err := parseBackend(text)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(l.fixed, func(other Backend) bool { return other.Name == address.Name }) {
		return fmt.Errorf("backend %s is given twice", address.Name)
	}
	l.fixed = append(l.fixed, address)
	return nil
}

// addLogs adds the options of the log of requests.
func addLogs(flags *flag.FlagSet, cfg *Config) {
	flags.Uint64Var(&cfg.AccessLogSample, "access-log-sample", 0, "log every n-th request; 0: none")
	flags.StringVar(&cfg.LogFormat, "log-format", TextLog, "lines of the log: text or json")
	flags.IntVar(&cfg.TracesPerS, "traces-per-s", 0, "number of traces per second to record of requests without a traceparent; 0: begin no traces")
}

// newFlags returns the options of the command line, which write to cfg.
func newFlags(cfg *Config, backends *backendList, wantsVersion *bool) *flag.FlagSet {
	flags := flag.NewFlagSet("pipeline-gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Var(backends, "backend", "`address` of a pipeline server: host:rpc_port[/http_port], dns:///host:rpc_port[/http_port], srv:///NAME[/http_port or NAME], unix:GRPC_SOCKET[,HTTP_SOCKET], or link:SOCKET[,HTTP_SOCKET] as the server starts it; repeatable")
	flags.DurationVar(&cfg.DNSInterval, "dns-interval", defaultDNSInterval, "time between two lookups of a name of dns:/// or srv:///")
	flags.StringVar(&cfg.BackendsFile, "backends-file", "", "`file` with more backends, one address a line or JSON; the gateway checks it for changes twice a second")
	addPorts(flags, cfg)
	addCORS(flags, cfg)
	addLogs(flags, cfg)
	flags.BoolVar(&cfg.ConnectedIsUp, "connected-is-up", false, "tell the parent that the gateway is ready once a backend is connected, ready or not")
	flags.BoolVar(&cfg.HasParent, "parent", false, "stdin is a connection to the parent: the gateway ends when it closes")
	flags.Int64Var(&cfg.MaxMessageBytes, "max-message-bytes", defaultMaxMessageBytes, "limit of a request's body, decompressed, bytes")
	flags.Int64Var(&cfg.MaxJSONBytes, "max-json-bytes", defaultMaxJSONBytes, "limit of the JSON of an inference, decompressed, and of its answer, bytes")
	flags.Int64Var(&cfg.MaxBufferedBytes, "max-buffered-bytes", 0, "maximum bytes of requests and answers in memory; 0: 512 MiB or 12 times --max-json-bytes, but at most half of the control group's limit")
	flags.IntVar(&cfg.MaxConnections, "max-connections", defaultMaxConnections, "maximum number of callers' connections; at most half of the limit of open files")
	flags.DurationVar(&cfg.WriteTimeout, "write-timeout", defaultWriteTimeout, "disconnect a caller that reads nothing of its answer for this time")
	flags.Int64Var(&cfg.MinUploadRate, "min-upload-rate", defaultMinUploadRate, "minimum bytes per second of a request's body that takes longer than a minute")
	flags.DurationVar(&cfg.Timeout, "timeout", 0, "deadline of a request without Grpc-Timeout; 0: none")
	flags.DurationVar(&cfg.StallTimeout, "stall-timeout", defaultStallTimeout, "give up a backend that answers no heartbeat for this time; after half of it the backend gets no new requests")
	flags.DurationVar(&cfg.Slack, "slack", defaultSlack, "time after a deadline in which the backend may still answer")
	flags.DurationVar(&cfg.Grace, "grace", defaultGrace, "time that a stopping gateway gives to running requests")
	flags.DurationVar(&cfg.DrainDelay, "drain-delay", 0, "time for which a stopping gateway reports not ready and continues to serve")
	flags.StringVar(&cfg.TLS.Cert, "tls-cert", "", "PEM `file`: serve TLS (HTTP/1.1 and HTTP/2) with this certificate")
	flags.StringVar(&cfg.TLS.key, "tls-key", "", "PEM `file` with the key of --tls-cert")
	flags.StringVar(&cfg.TLS.ClientCA, "tls-client-ca", "", "PEM `file`: callers need a certificate of this authority")
	flags.BoolVar(&cfg.BackendTLS.enabled, "backend-tls", false, "speak TLS to the backends, gRPC and HTTP")
	flags.StringVar(&cfg.BackendTLS.CA, "backend-ca", "", "PEM `file` with the authority of the backends' certificates; default: the system's authorities")
	flags.StringVar(&cfg.BackendTLS.cert, "backend-cert", "", "PEM `file` with the gateway's certificate for the backends")
	flags.StringVar(&cfg.BackendTLS.key, "backend-key", "", "PEM `file` with the key of --backend-cert")
	flags.StringVar(&cfg.BackendTLS.serverName, "backend-server-name", "", "`name` in the backends' certificates; default: the host")
	flags.BoolVar(&cfg.H2C, "h2c", false, "accept HTTP/2 without TLS")
	flags.IntVar(&cfg.GzipMinBytes, "gzip-min-bytes", 0, "minimum size of an answer that is compressed with gzip, if the caller accepts it, bytes; 0: never")
	flags.BoolVar(&cfg.BackendMetrics, "backend-metrics", false, "append a backend's /metrics to the gateway's")
	flags.StringVar(&cfg.Access, "access", "", "JSON `file` with access rules, as the section access of config.yml; empty: all callers may do everything")
	flags.Var(&cfg.Trust.proxies, "trusted-proxy", "`address` or network of a proxy whose X-Forwarded-* headers are trusted; repeatable")
	flags.Var(&cfg.Trust.metadata, "allow-metadata", "`name` of a header that callers may set besides the protocols' headers; repeatable; without it: any")
	cfg.Balancing.addFlags(flags)
	flags.BoolVar(wantsVersion, "version", false, "print the version")
	return flags
}

// Parse reads a command line. Its errors name the wrong option and the reason.
func Parse(args []string) (Config, error) {
	cfg := Config{Patience: patience, HeadPatience: headPatience, HandshakeTimeout: handshakeTimeout}
	var backends backendList
	var wantsVersion bool
	flags := newFlags(&cfg, &backends, &wantsVersion)
	if err := flags.Parse(args); err != nil {
		return Config{}, err
	}
	if wantsVersion {
		return Config{}, ErrVersion
	}
	if flags.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	cfg.Backends, cfg.Lookups = backends.fixed, backends.lookups
	isListenSet := false
	flags.Visit(func(f *flag.Flag) { isListenSet = isListenSet || f.Name == "listen" })
	if err := cfg.check(); err != nil {
		return Config{}, err
	}
	if err := cfg.CORS.check(); err != nil {
		return Config{}, err
	}
	if err := cfg.checkPorts(isListenSet); err != nil {
		return Config{}, err
	}
	if cfg.MaxBufferedBytes == 0 {
		cfg.MaxBufferedBytes = memory.BudgetFor(cfg.JSONLimit().Bytes, memory.Limit())
	}
	cfg.MaxConnections = max(1, min(cfg.MaxConnections, sockets.MostOpenFiles()/2))
	return cfg, nil
}

// check returns an error if an option has a bad value, or if options contradict each other.
func (c *Config) check() error {
	switch {
	case len(c.Backends) == 0 && len(c.Lookups) == 0 && c.BackendsFile == "":
		return errors.New("no backend: give --backend host:rpc_port[/http_port] at least once, or --backends-file")
	case c.MaxMessageBytes < 1 || c.MaxMessageBytes > math.MaxInt32:
		return fmt.Errorf("--max-message-bytes %d is not in 1..%d", c.MaxMessageBytes, math.MaxInt32)
	case c.MaxJSONBytes < 1 || c.MaxJSONBytes > math.MaxInt32:
		return fmt.Errorf("--max-json-bytes %d is not in 1..%d", c.MaxJSONBytes, math.MaxInt32)
	case c.MaxBufferedBytes != 0 && c.MaxBufferedBytes < memory.LeastBufferedBytes:
		return fmt.Errorf("--max-buffered-bytes %d is less than %d", c.MaxBufferedBytes, memory.LeastBufferedBytes)
	case c.MaxConnections < 1:
		return fmt.Errorf("--max-connections %d is less than 1", c.MaxConnections)
	case c.WriteTimeout <= 0:
		return errors.New("--write-timeout must be positive")
	case c.MinUploadRate < 1:
		return fmt.Errorf("--min-upload-rate %d is less than 1", c.MinUploadRate)
	case c.DNSInterval <= 0:
		return errors.New("--dns-interval must be positive")
	case c.StallTimeout < leastStallTimeout:
		return fmt.Errorf("--stall-timeout %v is less than %v", c.StallTimeout, leastStallTimeout)
	case c.Timeout < 0 || c.Slack < 0 || c.Grace < 0 || c.DrainDelay < 0:
		return errors.New("--timeout, --slack, --grace and --drain-delay must not be negative")
	case c.LogFormat != TextLog && c.LogFormat != JSONLog:
		return fmt.Errorf("--log-format %q is neither text nor json", c.LogFormat)
	case c.TracesPerS < 0:
		return fmt.Errorf("--traces-per-s %d must not be negative", c.TracesPerS)
	case c.GzipMinBytes < 0:
		return fmt.Errorf("--gzip-min-bytes %d must not be negative", c.GzipMinBytes)
	case (c.TLS.Cert == "") != (c.TLS.key == ""):
		return errors.New("--tls-cert and --tls-key belong together: give both")
	case c.TLS.ClientCA != "" && c.TLS.Cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case (c.BackendTLS.cert == "") != (c.BackendTLS.key == ""):
		return errors.New("--backend-cert and --backend-key belong together: give both")
	case !c.BackendTLS.enabled && c.BackendTLS != backendTLSFiles{}:
		return errors.New("--backend-ca, --backend-cert, --backend-key and --backend-server-name need --backend-tls")
	case c.BackendTLS.enabled && slices.ContainsFunc(c.Backends, func(each Backend) bool { return each.IsLink }):
		return errors.New("--backend-tls: a link is not encrypted; give host:rpc_port[/http_port]")
	}
	return c.Balancing.check()
}

// Usage returns the text of --help.
func Usage() string {
	var text bytes.Buffer
	text.WriteString("pipeline-gateway: HTTP in front of pipeline servers.\n\n" +
		"  pipeline-gateway --backend host:rpc_port/http_port [--backend ...] [--listen host:port]\n\n")
	var cfg Config
	var backends backendList
	flags := newFlags(&cfg, &backends, new(bool))
	flags.SetOutput(&text)
	flags.PrintDefaults()
	return text.String()
}
