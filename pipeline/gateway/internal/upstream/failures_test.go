package upstream

import (
	"net/http"
	"reflect"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/failure"
)

func TestStatusesOfForeignBackendsAreTranslated(t *testing.T) {
	for code, want := range map[codes.Code]failure.Error{
		codes.InvalidArgument:   {Status: 400, ErrNo: 8000},
		codes.DeadlineExceeded:  {Status: 504, ErrNo: 6000},
		codes.NotFound:          {Status: 404, ErrNo: 3002},
		codes.PermissionDenied:  {Status: 403, ErrNo: 10000},
		codes.ResourceExhausted: {Status: 429, ErrNo: 3004},
		codes.Unimplemented:     {Status: 501, ErrNo: 3000},
		codes.Internal:          {Status: 500, ErrNo: 10000},
		codes.Unknown:           {Status: 500, ErrNo: 10000},
		codes.Unavailable:       {Status: 503, ErrNo: 3001},
		codes.Unauthenticated:   {Status: 401, ErrNo: 10000},
		codes.Canceled:          {Status: 503, ErrNo: 3001},
		codes.Aborted:           {Status: 409, ErrNo: 10000},
		codes.DataLoss:          {Status: 500, ErrNo: 10000},
	} {
		want.Text, want.Code = "why", code
		if got := failureOf(status.Error(code, "why"), nil); *got != want {
			t.Errorf("%v: got %+v", code, *got)
		}
	}
}

func TestAPipelineServerSaysWhichErrorItWas(t *testing.T) {
	for _, test := range []struct {
		code codes.Code
		said []string
		want failure.Error
	}{
		{codes.ResourceExhausted, []string{"3004"}, failure.Error{Status: 503, ErrNo: 3004, RetryAfter: 1, IsRefused: true}},
		{codes.Internal, []string{"8000"}, failure.Error{Status: 500, ErrNo: 8000}},
		{codes.Internal, []string{"-5"}, failure.Error{Status: 500, ErrNo: -5}},
		{codes.Internal, []string{"x"}, failure.Error{Status: 500, ErrNo: 10000}},
		{codes.Internal, []string{"99999999999"}, failure.Error{Status: 500, ErrNo: 10000}},
		{codes.Internal, []string{"1", "2"}, failure.Error{Status: 500, ErrNo: 10000}},
	} {
		test.want.Text, test.want.Code = "why", test.code
		got := failureOf(status.Error(test.code, "why"), metadata.MD{ErrNoKey: test.said})
		if *got != test.want {
			t.Errorf("%v %q: got %+v, want %+v", test.code, test.said, *got, test.want)
		}
	}
}

func TestUserCodeSaysTheHeadOfAnAnswerElsewhere(t *testing.T) {
	trailer := metadata.Pairs(ErrNoKey, "52", statusKey, "422", "x-why", "because", "connection", "close", "grpc-status-details-bin", "x", "x-pipeline-caller", "root")
	got := failureOf(status.Error(codes.InvalidArgument, "why"), trailer)
	want := http.Header{"X-Why": {"because"}}
	if got.Status != 422 || got.ErrNo != 52 || got.Head == nil || !reflect.DeepEqual(got.Head.Header, want) {
		t.Errorf("got %+v with %+v", *got, got.Head)
	}
	if outcome := OutcomeOf(t.Context(), &failure.Error{Status: 503, Head: got.Head}); outcome != Good {
		t.Errorf("a status that user code says is held against the backend: %v", outcome)
	}
	for _, said := range []string{"", "x", "100", "1000"} {
		if head := headOfTrailer(metadata.Pairs(statusKey, said, "x-why", "because")); head != nil {
			t.Errorf("%q: got %+v", said, *head)
		}
	}
}

func TestAServerThatStopsSaysWhatItHasNotBegun(t *testing.T) {
	stopped := status.Error(codes.Unavailable, "dag closed.")
	for _, test := range []struct {
		trailer metadata.MD
		want    bool
	}{
		{metadata.MD{ErrNoKey: {"3001"}, retryKey: {"0"}}, true}, {metadata.MD{ErrNoKey: {"3001"}}, false}, {nil, false},
	} {
		if got := failureOf(stopped, test.trailer); got.IsRefused != test.want || got.Status != 503 || got.ErrNo != 3001 {
			t.Errorf("%v: %+v", test.trailer, got)
		}
	}
}

func TestAPipelineServerSaysWhenToTryAgain(t *testing.T) {
	for said, want := range map[string]int{
		"7000": 7, "1": 1, "1001": 2, "0": 1, "-1": 1, "x": 1, "99999999999": 1, "": 1,
	} {
		trailer := metadata.MD{ErrNoKey: {"3004"}, retryKey: {said}}
		if got := failureOf(status.Error(codes.ResourceExhausted, "why"), trailer); got.RetryAfter != want {
			t.Errorf("%q: %d, want %d", said, got.RetryAfter, want)
		}
	}
}

func TestWhatIsTooLargeForGRPCIsNoReasonToTryAgain(t *testing.T) {
	for _, test := range []struct {
		code codes.Code
		text string
		want failure.Error
	}{
		{codes.ResourceExhausted, "SERVER: Sent message larger than max (9 vs. 5)", failure.Error{Status: 500, ErrNo: 8000, Text: messageTooLarge}},
		{codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 5)", failure.Error{Status: 500, ErrNo: 8000, Text: messageTooLarge}},
		{codes.Internal, "header list size to send violates the maximum size (5 bytes) set by server", failure.Error{Status: 431, ErrNo: 8000, Text: MetadataTooLarge}},
		{codes.ResourceExhausted, "received metadata size exceeds hard limit (9 vs. 5)", failure.Error{Status: 431, ErrNo: 8000, Text: MetadataTooLarge}},
	} {
		said := status.Error(test.code, test.text)
		test.want.Text += ": " + test.text
		test.want.Code = test.code
		if got := failureOf(said, nil); *got != test.want {
			t.Errorf("got %+v, want %+v", *got, test.want)
		}
		if got := failureOf(said, metadata.MD{ErrNoKey: {"3004"}}); got.Status != 503 || got.Text != test.text {
			t.Errorf("the server's own word counts for more: %+v", *got)
		}
	}
}
