package config

import (
	"fmt"
	"net/netip"
)

// proxyList is the flag --trusted-proxy, which may be given several times: whose word on where a
// request comes from is believed.
type proxyList []netip.Prefix

func (l *proxyList) String() string { return "" }

func (l *proxyList) Set(text string) error {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		address, isNone := netip.ParseAddr(text)
		if isNone != nil {
			return fmt.Errorf("%q is no address and no network, such as 10.0.0.0/8", text)
		}
		network = netip.PrefixFrom(address, address.BitLen())
	}
	*l = append(*l, network.Masked())
	return nil
}

// Trusts says whether a peer is such a proxy.
func (c *Config) Trusts(peer string) bool {
	if len(c.trustedProxies) == 0 {
		return false
	}
	from, err := netip.ParseAddrPort(peer)
	if err != nil {
		return false
	}
	address := from.Addr().Unmap().WithZone("")
	for _, network := range c.trustedProxies {
		if network.Contains(address) {
			return true
		}
	}
	return false
}
