// Package reserved has the names, in lower case, of headers and metadata that do not belong to applications.
package reserved

import "strings"

// Caller names what tells a server who asks, which the gateway alone says.
const Caller = "x-pipeline-caller"

// MetadataPrefix begins the names of headers that are metadata at a server: `grpc-metadata-x` is another spelling of `x`.
const MetadataPrefix = "grpc-metadata-"

// Kind says who says what is under a name.
type Kind int

const (
	Free       Kind = iota // callers
	Gateway                // the gateway, which drops what callers say there
	Proxies                // the gateway, and proxies that it trusts
	Connection             // the connection: it says nothing about a request
	Message                // the protocol: about this one message
	Own                    // callers, but not as other metadata: they have headers of their own
	Credential             // callers, to the gateway
)

// Names has every name of a kind.
var Names = map[string]Kind{
	Caller: Gateway,

	"forwarded": Proxies, "x-real-ip": Proxies, "x-forwarded-for": Proxies, "x-forwarded-host": Proxies, "x-forwarded-proto": Proxies,

	"connection": Connection, "keep-alive": Connection, "proxy-authenticate": Connection, "proxy-authorization": Connection,
	"proxy-connection": Connection, "te": Connection, "trailer": Connection, "transfer-encoding": Connection, "upgrade": Connection,

	":authority": Message, "content-length": Message, "content-type": Message, "host": Message, "user-agent": Message,
	"grpc-timeout": Message, "grpc-encoding": Message, "pipeline-timeout": Message, "pipeline-err-no": Message, "pipeline-status": Message,
	"pipeline-idempotent": Message,

	"traceparent": Own, "tracestate": Own, "x-request-id": Own,

	"authorization": Credential, "x-api-key": Credential,
}

// prefixes are those of names of a kind.
var prefixes = []struct {
	text string
	kind Kind
}{{"x-pipeline-", Gateway}, {"x-forwarded-", Proxies}, {"grpc-", Message}, {"pipeline-", Message}}

// Of returns the kind of a name.
func Of(name string) Kind {
	if kind, isListed := Names[name]; isListed {
		return kind
	}
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix.text) {
			return prefix.kind
		}
	}
	return Free
}

// Plain returns a name without the prefixes of metadata, however many there are, and whether there was one.
func Plain(name string) (plain string, isMetadata bool) {
	for {
		suffix, has := strings.CutPrefix(name, MetadataPrefix)
		if !has {
			return name, isMetadata
		}
		name, isMetadata = suffix, true
	}
}

// IsGateways says whether what a caller says under a name, in any spelling and case, is to be dropped wherever it comes in.
func IsGateways(name string) bool {
	if name == "" || !strings.Contains("xXgG", name[:1]) { // as of most: nothing is copied for them
		return false
	}
	plain, _ := Plain(strings.ToLower(name))
	return Of(plain) == Gateway
}

// IsMetadata says whether a caller may choose a key of metadata by a header of that spelling. A credential is one that has
// passed the gateway; one that is a header of its own comes by that.
func IsMetadata(key string) bool {
	kind := Of(key)
	return kind == Free || (kind == Credential && key != "authorization")
}
