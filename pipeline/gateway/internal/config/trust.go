package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// Trust says what is believed of what callers say beside their requests.
type Trust struct {
	proxies  proxyList
	metadata nameList // empty: any
}

// proxyList is the flag --trusted-proxy, which may be given several times: whose word on where a
// request comes from is believed.
type proxyList []netip.Prefix

func (l *proxyList) String() string { return "" }

func (l *proxyList) Set(text string) error {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		address, isNone := netip.ParseAddr(text)
		if isNone != nil {
			return fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", text)
		}
		network = netip.PrefixFrom(address, address.BitLen())
	}
	*l = append(*l, network.Masked())
	return nil
}

func (l proxyList) has(address netip.Addr) bool {
	for _, network := range l {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// nameList is the flag --allow-metadata, which may be given several times: the names of headers that callers
// may set.
type nameList map[string]bool

func (l *nameList) String() string { return "" }

func (l *nameList) Set(text string) error {
	if text == "" || strings.Trim(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return fmt.Errorf("%q is not the name of a header", text)
	}
	if *l == nil {
		*l = nameList{}
	}
	(*l)[strings.ToLower(text)] = true
	return nil
}

// Add adds proxies and names of metadata that a file says.
func (t *Trust) Add(proxies, metadata []string) error {
	for _, each := range proxies {
		if err := t.proxies.Set(each); err != nil {
			return fmt.Errorf("trusted_proxies: %w", err)
		}
	}
	for _, each := range metadata {
		if err := t.metadata.Set(each); err != nil {
			return fmt.Errorf("metadata: %w", err)
		}
	}
	return nil
}

// Proxy says whether a peer is a proxy whose word is believed.
func (t *Trust) Proxy(peer string) bool {
	address, isKnown := addressOf(peer)
	return isKnown && t.proxies.has(address)
}

// Origin returns who asks, and from which address: the peer, or what the trusted proxies say of who asked
// the first
// of them. `forwarded` are the values of X-Forwarded-For, each of which may have several addresses.
func (t *Trust) Origin(peer string, forwarded []string) (caller string, from netip.Addr) {
	from, isKnown := addressOf(peer)
	if !isKnown {
		return peer, netip.IPv6Unspecified() // as of all whose address is not known
	}
	if len(forwarded) == 0 || !t.proxies.has(from) {
		return peer, from
	}
	path := strings.Split(strings.Join(forwarded, ","), ",")
	for at := len(path) - 1; at >= 0 && t.proxies.has(from); at-- {
		next, isKnown := addressOf(strings.TrimSpace(path[at]))
		if !isKnown { // then it is the proxy that is known last
			break
		}
		from = next
	}
	return from.String(), from
}

// Lists says whether there is a list of what callers may set.
func (t *Trust) Lists() bool { return len(t.metadata) > 0 }

// Names says whether the list has a name, in lower case.
func (t *Trust) Names(name string) bool { return t.metadata[name] }

// ofProtocols are headers that say how a request is to be read or answered, not what an application makes of
// it.
var ofProtocols = nameList{
	"accept": true, "accept-encoding": true, "cache-control": true, "connection": true, "content-encoding": true,
	"content-length": true, "content-type": true, "expect": true, "forwarded": true, "grpc-timeout": true, "grpc-encoding": true,
	"grpc-accept-encoding": true, "host": true, "if-modified-since": true, "if-none-match": true, "inference-header-content-length": true,
	"keep-alive": true, "origin": true, "pipeline-idempotent": true, "pipeline-sequence-id": true, "pipeline-timeout": true, "range": true, "sec-fetch-site": true, "te": true, "traceparent": true,
	"tracestate": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "user-agent": true, "x-real-ip": true,
}

var ofProtocolPrefixes = []string{"access-control-request-", "x-forwarded-"}

// Allows says whether callers may set a header, by its name in lower case.
func (t *Trust) Allows(name string) bool {
	if len(t.metadata) == 0 || ofProtocols[name] || t.metadata[name] {
		return true
	}
	for _, prefix := range ofProtocolPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// addressOf returns the address of a text, which may have a port; of IPv4 in the form of IPv6 that of IPv4.
func addressOf(text string) (netip.Addr, bool) {
	with, err := netip.ParseAddrPort(text) // as most are
	found := with.Addr()
	if err != nil {
		found, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	}
	return found.Unmap().WithZone(""), err == nil
}
