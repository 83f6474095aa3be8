package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"pipeline/gateway/internal/sockets"
)

// Schemes of backends on Unix sockets, by what the first socket speaks.
const (
	unixScheme = "unix:" // gRPC
	LinkScheme = "link:" // see internal/link
)

// Backend is one --backend.
type Backend struct {
	Name   string            // as it was given: what logs, metrics and errors call it
	Host   string            // the name that its certificate should have
	RPC    sockets.Endpoint  // gRPC, or the link
	IsLink bool              // which of them
	HTTP   *sockets.Endpoint // nil: not known
}

// ParseRemote reads a backend of a list, `host:rpc_port[/http_port]` or `unix:GRPC_SOCKET[,HTTP_SOCKET]`. A
// link is a server's
// own, and its gateway's from the start.
func ParseRemote(text string) (Backend, error) {
	if strings.HasPrefix(text, LinkScheme) {
		return Backend{}, fmt.Errorf("%q: a link is given by --backend only", text)
	}
	return parseBackend(text)
}

// parseBackend reads `host:rpc_port[/http_port]`, `unix:GRPC_SOCKET[,HTTP_SOCKET]` or
// `link:SOCKET[,HTTP_SOCKET]`.
func parseBackend(text string) (Backend, error) {
	for _, scheme := range []string{unixScheme, LinkScheme} {
		if paths, isLocal := strings.CutPrefix(text, scheme); isLocal {
			return parseLocalBackend(text, scheme, paths)
		}
	}
	address, httpPort, hasHTTP := strings.Cut(text, "/")
	host, rpcPort, err := net.SplitHostPort(address)
	if err != nil {
		return Backend{}, fmt.Errorf("%q is not host:rpc_port[/http_port]: %w", text, err)
	}
	if host == "" {
		return Backend{}, fmt.Errorf("%q has no host", text)
	}
	if err := checkPort(rpcPort); err != nil {
		return Backend{}, fmt.Errorf("%q: rpc_port: %w", text, err)
	}
	backend := Backend{Name: text, Host: host, RPC: sockets.Endpoint{Network: "tcp", Address: address}}
	if hasHTTP {
		if err := checkPort(httpPort); err != nil {
			return Backend{}, fmt.Errorf("%q: http_port: %w", text, err)
		}
		backend.HTTP = &sockets.Endpoint{Network: "tcp", Address: net.JoinHostPort(host, httpPort)}
	}
	return backend, nil
}

func parseLocalBackend(text, scheme, paths string) (Backend, error) {
	rpc, web, hasHTTP := strings.Cut(paths, ",")
	if rpc == "" || (hasHTTP && web == "") {
		return Backend{}, fmt.Errorf("%q is not %sSOCKET[,HTTP_SOCKET]", text, scheme)
	}
	backend := Backend{
		Name: scheme + rpc, Host: "localhost", RPC: sockets.Endpoint{Network: "unix", Address: rpc}, IsLink: scheme == LinkScheme,
	}
	if hasHTTP {
		backend.HTTP = &sockets.Endpoint{Network: "unix", Address: web}
	}
	return backend, nil
}

func checkPort(text string) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%q is not a port: expected 1..65535", text)
	}
	return nil
}
