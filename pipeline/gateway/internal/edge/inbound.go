package edge

import (
	"net/http"
	"net/netip"
	"strings"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/reserved"
)

// origin returns who asks, and from which address.
func origin(r *http.Request, trust *config.Trust) (caller string, from netip.Addr) {
	return trust.Origin(r.RemoteAddr, r.Header["X-Forwarded-For"])
}

// dropForbidden takes off a request what its caller may not set, whichever way it is spelt.
func dropForbidden(header http.Header, trust *config.Trust) {
	for name := range header {
		if reserved.IsGateways(name) {
			delete(header, name)
			continue
		}
		if !trust.Lists() {
			continue
		}
		said := strings.ToLower(name)
		if suffix, isMetadata := strings.CutPrefix(said, reserved.MetadataPrefix); isMetadata {
			if !trust.Names(suffix) { // as metadata nothing is the protocol's
				delete(header, name)
			}
		} else if !trust.Allows(said) {
			delete(header, name)
		}
	}
}

// dropCredentials takes off a request what was for the gate to read.
func dropCredentials(header http.Header, trust *config.Trust) {
	for name := range header {
		said := strings.ToLower(name)
		if reserved.Of(said) == reserved.Credential && !trust.Names(said) {
			delete(header, name)
		}
	}
}
