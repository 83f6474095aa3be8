package edge

import (
	"encoding/base64"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/reserved"
)

// MaxMetadataBytes of metadata are accepted by every gRPC server: some refuse more by chance.
const MaxMetadataBytes = 8 << 10

// metadataOverhead is what gRPC adds to the size of each key and value.
const metadataOverhead = 32

const binarySuffix = "-bin"

// forwarded are the headers that a backend receives, by their metadata's keys.
var forwarded = map[string]string{
	"Authorization": "authorization",
	"Traceparent":   "traceparent",
	"Tracestate":    "tracestate",
	"X-Request-Id":  "x-request-id",
}

// outgoing returns the metadata that a backend receives with the request.
func outgoing(header http.Header) metadata.MD {
	told := make(metadata.MD, 4)
	for name, values := range header {
		key, isForwarded := metadataKey(name)
		if !isForwarded {
			continue
		}
		for _, value := range values {
			if value, ok := metadataValue(key, value); ok {
				told[key] = append(told[key], value)
			}
		}
	}
	return told
}

// metadataBytes is the size of a backend's metadata, as gRPC counts it, or a little more if that is small;
// `isAll`: it receives all headers.
func metadataBytes(header http.Header, isAll bool) int {
	all := 0
	for name, values := range header {
		for _, value := range values {
			all += len(name) + len(value) + metadataOverhead
		}
	}
	if isAll || all <= MaxMetadataBytes { // most callers have few headers: their metadata are smaller
		return all
	}
	size := 0
	for name, values := range header {
		key, isForwarded := metadataKey(name)
		if isForwarded {
			for _, value := range values {
				size += len(key) + len(value) + metadataOverhead
			}
		}
	}
	return size
}

// metadataKey returns the key under which a backend receives a header, if it does.
func metadataKey(name string) (key string, isForwarded bool) {
	if key, isForwarded = forwarded[name]; isForwarded {
		return key, true
	}
	key, isMetadata := strings.CutPrefix(strings.ToLower(name), reserved.MetadataPrefix)
	return key, isMetadata && isFree(key)
}

// isFree says whether a caller may choose the value of a key.
func isFree(key string) bool {
	return key != "" && reserved.IsMetadata(key) && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// metadataValue returns a header's value as metadata, if that can hold it.
func metadataValue(key, value string) (string, bool) {
	if strings.HasSuffix(key, binarySuffix) {
		data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
		return string(data), err == nil
	}
	for at := range len(value) {
		if value[at] < ' ' || value[at] > '~' {
			return "", false
		}
	}
	return value, true
}
