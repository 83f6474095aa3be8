package edge

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/reserved"
)

func TestHeadersBecomeMetadata(t *testing.T) {
	header := http.Header{}
	for _, each := range [][2]string{
		{"Authorization", "Bearer x"}, {"traceparent", "00-1"}, {"tracestate", "a=b"}, {"x-request-id", "7"},
		{"Grpc-Metadata-Tenant", "one"}, {"Grpc-Metadata-Tenant", "two"}, {"Grpc-Metadata-Raw-Bin", "AP8"},
		{"Grpc-Metadata-Broken-Bin", "?"}, {"Grpc-Metadata-Pipeline-Timeout", "9H"}, {"Grpc-Metadata-Grpc-Timeout", "9H"},
		{"Grpc-Metadata-", "x"}, {"Grpc-Metadata-A!", "x"}, {"Grpc-Metadata-Text", "é"}, {"Cookie", "secret"}, {"Te", "trailers"},
	} {
		header.Add(each[0], each[1])
	}
	got := outgoing(header)
	want := metadata.MD{
		"authorization": {"Bearer x"}, "traceparent": {"00-1"}, "tracestate": {"a=b"}, "x-request-id": {"7"},
		"tenant": {"one", "two"}, "raw-bin": {"\x00\xff"},
	}
	for key, values := range want {
		if len(got[key]) != len(values) || got[key][0] != values[0] {
			t.Errorf("%s: got %q, want %q", key, got[key], values)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
}

func TestACallerCannotSayWhatIsTheGatewaysToSay(t *testing.T) {
	header := http.Header{"Authorization": {"Bearer own"}}
	for _, key := range []string{
		"authorization", "traceparent", "tracestate", "x-request-id", "Host", "Connection", "Te", "Content-Type", "User-Agent",
		"Transfer-Encoding", "Forwarded", "X-Real-Ip", "X-Forwarded-For", "Pipeline-Err-No", "Grpc-Metadata-Authorization",
	} {
		header.Add(reserved.MetadataPrefix+key, "forged")
	}
	got := outgoing(header)
	if len(got) != 1 || len(got["authorization"]) != 1 || got["authorization"][0] != "Bearer own" {
		t.Errorf("got %v", got)
	}
	header.Set("X-Unknown", strings.Repeat("x", MaxMetadataBytes)) // with less it is not looked at closely
	if size := metadataBytes(header, false); size != len("authorization")+len("Bearer own")+metadataOverhead {
		t.Errorf("%d bytes", size)
	}
}
