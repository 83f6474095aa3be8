package config

import (
	"fmt"
	"net"
	"strings"

	"pipeline/gateway/internal/sockets"
)

// Schemes of names that are looked up again and again.
const (
	dnsScheme = "dns:///"
	srvScheme = "srv:///"
)

// Lookup is a --backend that stands for several: one name in DNS.
type Lookup struct {
	Text     string // as it was given
	Host     string // of A and AAAA records; "": there are SRV records
	RPCPort  string // beside Host
	RPCName  string // of SRV records
	HTTPName string // of SRV records of the HTTP ports; "": HTTPPort says
	HTTPPort string // ""; it is not known
}

// parseLookup reads `dns:///host:rpc_port[/http_port]` or `srv:///NAME[/http_port or NAME]`; isLookup is
// false for what is
// neither.
func parseLookup(text string) (found Lookup, isLookup bool, err error) {
	if rest, isDNS := strings.CutPrefix(text, dnsScheme); isDNS {
		like, err := parseBackend(rest)
		if err != nil || like.RPC.Network != "tcp" {
			return Lookup{}, true, fmt.Errorf("%q is not dns:///host:rpc_port[/http_port]: %w", text, err)
		}
		_, port, _ := net.SplitHostPort(like.RPC.Address)
		_, httpPort, _ := strings.Cut(rest, "/")
		return Lookup{Text: text, Host: like.Host, RPCPort: port, HTTPPort: httpPort}, true, nil
	}
	rest, isSRV := strings.CutPrefix(text, srvScheme)
	if !isSRV {
		return Lookup{}, false, nil
	}
	name, web, hasWeb := strings.Cut(rest, "/")
	found = Lookup{Text: text, RPCName: name}
	switch {
	case name == "" || (hasWeb && web == ""):
		err = fmt.Errorf("%q is not srv:///NAME[/http_port or NAME]", text)
	case checkPort(web) == nil:
		found.HTTPPort = web
	case strings.HasPrefix(web, "_") || !hasWeb:
		found.HTTPName = web
	default:
		err = fmt.Errorf("%q: expected a port after the slash, or a name of SRV records, which begins with _", text)
	}
	return found, true, err
}

// At returns the backend at an address that was found; httpPort "": its HTTP port is not known.
func (l *Lookup) At(address, rpcPort, httpPort string) Backend {
	found := Backend{Host: l.Host, RPC: sockets.Endpoint{Network: "tcp", Address: net.JoinHostPort(address, rpcPort)}}
	if found.Host == "" {
		found.Host = address
	}
	found.Name = found.RPC.Address
	if httpPort != "" {
		found.Name += "/" + httpPort
		found.HTTP = &sockets.Endpoint{Network: "tcp", Address: net.JoinHostPort(address, httpPort)}
	}
	return found
}
