package main

import (
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestStatusesOfForeignBackendsAreTranslated(t *testing.T) {
	for code, want := range map[codes.Code]refusal{
		codes.InvalidArgument:   {status: 400, code: 8000},
		codes.DeadlineExceeded:  {status: 504, code: 6000},
		codes.NotFound:          {status: 404, code: 3002},
		codes.PermissionDenied:  {status: 403, code: 10000},
		codes.ResourceExhausted: {status: 429, code: 3004},
		codes.Unimplemented:     {status: 501, code: 3000},
		codes.Internal:          {status: 500, code: 10000},
		codes.Unknown:           {status: 500, code: 10000},
		codes.Unavailable:       {status: 503, code: 3001},
		codes.Unauthenticated:   {status: 401, code: 10000},
		codes.Canceled:          {status: 503, code: 3001},
		codes.Aborted:           {status: 409, code: 10000},
		codes.DataLoss:          {status: 500, code: 10000},
	} {
		want.text = "why"
		if got := refusalOf(status.Error(code, "why"), nil); *got != want {
			t.Errorf("%v: got %+v", code, *got)
		}
	}
}

func TestAPipelineServerSaysWhichErrorItWas(t *testing.T) {
	for _, test := range []struct {
		code codes.Code
		said []string
		want refusal
	}{
		{codes.ResourceExhausted, []string{"3004"}, refusal{status: 503, code: 3004, retryAfter: 1}},
		{codes.Internal, []string{"8000"}, refusal{status: 500, code: 8000}},
		{codes.Internal, []string{"-5"}, refusal{status: 500, code: -5}},
		{codes.Internal, []string{"x"}, refusal{status: 500, code: 10000}},
		{codes.Internal, []string{"99999999999"}, refusal{status: 500, code: 10000}},
		{codes.Internal, []string{"1", "2"}, refusal{status: 500, code: 10000}},
	} {
		test.want.text = "why"
		got := refusalOf(status.Error(test.code, "why"), metadata.MD{errNoKey: test.said})
		if *got != test.want {
			t.Errorf("%v %q: got %+v, want %+v", test.code, test.said, *got, test.want)
		}
	}
}

func TestAPipelineServerSaysWhenToTryAgain(t *testing.T) {
	for said, want := range map[string]int{
		"7000": 7, "1": 1, "1001": 2, "0": 1, "-1": 1, "x": 1, "99999999999": 1, "": 1,
	} {
		trailer := metadata.MD{errNoKey: {"3004"}, retryKey: {said}}
		if got := refusalOf(status.Error(codes.ResourceExhausted, "why"), trailer); got.retryAfter != want {
			t.Errorf("%q: %d, want %d", said, got.retryAfter, want)
		}
	}
}

func TestWhatIsTooLargeForGRPCIsNoReasonToTryAgain(t *testing.T) {
	for _, test := range []struct {
		code codes.Code
		text string
		want refusal
	}{
		{codes.ResourceExhausted, "SERVER: Sent message larger than max (9 vs. 5)", refusal{status: 500, code: 8000, text: messageTooLarge}},
		{codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 5)", refusal{status: 500, code: 8000, text: messageTooLarge}},
		{codes.Internal, "header list size to send violates the maximum size (5 bytes) set by server", refusal{status: 431, code: 8000, text: metadataTooLarge}},
		{codes.ResourceExhausted, "received metadata size exceeds hard limit (9 vs. 5)", refusal{status: 431, code: 8000, text: metadataTooLarge}},
	} {
		said := status.Error(test.code, test.text)
		test.want.text += ": " + test.text
		if got := refusalOf(said, nil); *got != test.want {
			t.Errorf("got %+v, want %+v", *got, test.want)
		}
		if got := refusalOf(said, metadata.MD{errNoKey: {"3004"}}); got.status != 503 || got.text != test.text {
			t.Errorf("the server's own word counts for more: %+v", *got)
		}
	}
}

func TestARefusalHasTheShapeOfAResponse(t *testing.T) {
	got := string((&refusal{code: 8000, text: "<é> \"\n\xff"}).body())
	want := `{"err_no":8000,"err_msg":"<é> \"\n\ufffd","key":[],"value":[],"tensors":[]}`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

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
	got := outgoing(header, deadline{text: "100m"})
	want := metadata.MD{
		"authorization": {"Bearer x"}, "traceparent": {"00-1"}, "tracestate": {"a=b"}, "x-request-id": {"7"},
		"tenant": {"one", "two"}, "raw-bin": {"\x00\xff"}, "pipeline-timeout": {"100m"},
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
		header.Add(metadataPrefix+key, "forged")
	}
	got := outgoing(header, deadline{})
	if len(got) != 1 || len(got["authorization"]) != 1 || got["authorization"][0] != "Bearer own" {
		t.Errorf("got %v", got)
	}
	if size := metadataBytes(header, false); size != len("authorization")+len("Bearer own")+metadataOverhead {
		t.Errorf("%d bytes", size)
	}
}

func TestGzipIsSentToWhoAcceptsIt(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "gzip": true, "GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.000": false, "br, gzip": true,
		"*": true, "*;q=0": false, "*, gzip;q=0": false, "deflate": false, "gzip;q=x": true,
	} {
		if got := acceptsGzip(http.Header{"Accept-Encoding": {text}}); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if acceptsGzip(nil) {
		t.Error("nothing was accepted")
	}
}
