package edge

import (
	"net/http"
	"net/netip"
	"strings"

	"pipeline/gateway/internal/access"
	"pipeline/gateway/internal/config"
)

// credentials are headers that only the gateway is to read, unless they are among what callers may set.
var credentials = []string{"Authorization", "X-Api-Key"}

// origin returns who asks, and from which address.
func origin(r *http.Request, trust *config.Trust) (caller string, from netip.Addr) {
	return trust.Origin(r.RemoteAddr, r.Header["X-Forwarded-For"])
}

// dropForbidden takes off a request what its caller may not set; who asks was said by the gate.
func dropForbidden(header http.Header, trust *config.Trust) {
	if !trust.Lists() {
		return
	}
	for name := range header {
		if name == access.CallerHeader {
			continue
		}
		said := strings.ToLower(name)
		if suffix, isMetadata := strings.CutPrefix(said, strings.ToLower(metadataPrefix)); isMetadata {
			said = suffix
			if !trust.Names(said) { // as metadata nothing is the protocol's
				delete(header, name)
			}
			continue
		}
		if !trust.Allows(said) {
			delete(header, name)
		}
	}
}

// dropCredentials takes off a request what was for the gate to read.
func dropCredentials(header http.Header, trust *config.Trust) {
	for _, name := range credentials {
		if !trust.Names(strings.ToLower(name)) {
			delete(header, name)
		}
	}
}
