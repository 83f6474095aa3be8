package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Schemes of backends on Unix sockets, by what the first socket speaks.
const (
	unixScheme = "unix:" // gRPC
	linkScheme = "link:" // see linkframe.go
)

// endpoint is where to dial: a network of package net, and an address there.
type endpoint struct {
	network string // "tcp" or "unix"
	address string
}

// backendAddress is one --backend.
type backendAddress struct {
	name   string    // as it was given: what logs, metrics and errors call it
	host   string    // the name that its certificate should have
	rpc    endpoint  // gRPC, or the link
	isLink bool      // which of them
	http   *endpoint // nil: not known
}

// parseBackend reads `host:rpc_port[/http_port]`, `unix:GRPC_SOCKET[,HTTP_SOCKET]` or
// `link:SOCKET[,HTTP_SOCKET]`.
func parseBackend(text string) (backendAddress, error) {
	for _, scheme := range []string{unixScheme, linkScheme} {
		if paths, isLocal := strings.CutPrefix(text, scheme); isLocal {
			return parseLocalBackend(text, scheme, paths)
		}
	}
	address, httpPort, hasHTTP := strings.Cut(text, "/")
	host, rpcPort, err := net.SplitHostPort(address)
	if err != nil {
		return backendAddress{}, fmt.Errorf("%q is not host:rpc_port[/http_port]: %w", text, err)
	}
	if host == "" {
		return backendAddress{}, fmt.Errorf("%q has no host", text)
	}
	if err := checkPort(rpcPort); err != nil {
		return backendAddress{}, fmt.Errorf("%q: rpc_port: %w", text, err)
	}
	backend := backendAddress{name: text, host: host, rpc: endpoint{"tcp", address}}
	if hasHTTP {
		if err := checkPort(httpPort); err != nil {
			return backendAddress{}, fmt.Errorf("%q: http_port: %w", text, err)
		}
		backend.http = &endpoint{"tcp", net.JoinHostPort(host, httpPort)}
	}
	return backend, nil
}

func parseLocalBackend(text, scheme, paths string) (backendAddress, error) {
	rpc, web, hasHTTP := strings.Cut(paths, ",")
	if rpc == "" || (hasHTTP && web == "") {
		return backendAddress{}, fmt.Errorf("%q is not %sSOCKET[,HTTP_SOCKET]", text, scheme)
	}
	backend := backendAddress{
		name: scheme + rpc, host: "localhost", rpc: endpoint{"unix", rpc}, isLink: scheme == linkScheme,
	}
	if hasHTTP {
		backend.http = &endpoint{"unix", web}
	}
	return backend, nil
}

func checkPort(text string) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%q is no port: 1..65535", text)
	}
	return nil
}
