package sequence

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"pipeline/gateway/pipelinepb"
)

func wants(t *testing.T, what string, got *Step, id string, isStart bool) {
	t.Helper()
	switch {
	case got == nil && id == "":
	case got == nil || got.ID != id || got.IsStart != isStart:
		t.Errorf("%s: %+v", what, got)
	}
}

func TestPairsSayASequence(t *testing.T) {
	for _, test := range []struct {
		keys, values []string
		id           string
		isStart      bool
	}{
		{nil, nil, "", false},
		{[]string{"x"}, []string{"1"}, "", false},
		{[]string{"x", "sequence_id"}, []string{"1", "7"}, "\x007", false},
		{[]string{"sequence_start", "sequence_id"}, []string{"True", "a"}, "\x00a", true},
		{[]string{"sequence_id", "sequence_start"}, []string{"7", "0"}, "\x007", false},
		{[]string{"sequence_id"}, []string{"0"}, "", false},
		{[]string{"sequence_id", "sequence_start", "sequence_end"}, []string{"7"}, "\x007", false},
		{[]string{"sequence_id"}, nil, "", false},
	} {
		wants(t, "pairs", OfPairs(test.keys, test.values), test.id, test.isStart)
		message, err := proto.Marshal(&pipelinepb.Request{Key: test.keys, Value: test.values, Name: "svc", Logid: 5})
		if err != nil {
			t.Fatal(err)
		}
		wants(t, "protobuf", OfRequest(message), test.id, test.isStart)
	}
}

func TestJSONSaysASequence(t *testing.T) {
	for _, test := range []struct {
		path, query, body, id string
		isStart               bool
	}{
		{"/v2/models/m/infer", "", `{"inputs":[]}`, "", false},
		{"/v2/models/m/infer", "", `{"parameters":{"sequence_id":18446744073709551615,"sequence_start":true}}`, "m\x0018446744073709551615", true},
		{"/v2/models/m/versions/1/infer", "", `{"parameters":{"sequence_id":"a","sequence_end":true}}`, "m\x00a", false},
		{"/v2/models/m/infer", "", `{"parameters":{"sequence_id":0}}`, "", false},
		{"/v2/models/m/infer", "", `{"parameters":{"sequence_id":null}}`, "", false},
		{"/v2/models/m/infer", "", `{"parameters":{"sequence_id":{}}}`, "", false},
		{"/v2/models/m/infer", "", `{"parameters":{"sequence_id":7`, "", false},
		{"/api/svc", "", `{"x":1,"sequence_id":7,"sequence_start":"1"}`, "/api/svc\x007", true},
		{"/svc/predict", "", `{"key":["sequence_id","sequence_start"],"value":["7","1"]}`, "\x007", true},
		{"/api/svc", "sequence_id=7&sequence_start=true", "picture", "/api/svc\x007", true},
	} {
		wants(t, test.body, OfJSON(test.path, test.query, []byte(test.body)), test.id, test.isStart)
	}
}

// entry returns an entry of parameters.
func entry(name string, value []byte) []byte {
	inner := protowire.AppendString(protowire.AppendTag(nil, entryKeyField, protowire.BytesType), name)
	inner = protowire.AppendBytes(protowire.AppendTag(inner, entryValField, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(nil, parametersField, protowire.BytesType), inner)
}

func TestModelInferSaysASequence(t *testing.T) {
	number := func(field protowire.Number, value uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
	}
	words := func(value string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, stringField, protowire.BytesType), value)
	}
	model := protowire.AppendString(protowire.AppendTag(nil, modelField, protowire.BytesType), "m")
	for _, test := range []struct {
		parts   [][]byte
		id      string
		isStart bool
	}{
		{nil, "", false},
		{[][]byte{entry("sequence_id", number(intField, 7))}, "m\x007", false},
		{[][]byte{entry("sequence_id", number(unsignedField, 1<<63)), entry("sequence_start", number(boolField, 1))}, "m\x009223372036854775808", true},
		{[][]byte{entry("sequence_start", number(boolField, 1)), entry("priority", number(intField, 2)), entry("sequence_id", words("a"))}, "m\x00a", true},
		{[][]byte{entry("sequence_id", number(intField, 0))}, "", false},
		{[][]byte{entry("sequence_id", number(intField, 7)), {0xff}}, "", false},
	} {
		message := model
		for _, part := range test.parts {
			message = append(message, part...)
		}
		wants(t, "ModelInfer", OfModelInfer(message), test.id, test.isStart)
	}
}

func TestTheEndIsSaidAsTheStartIs(t *testing.T) {
	message := append(entry("sequence_id", []byte{0x10, 7}), entry("sequence_end", []byte{0x08, 1})...)
	for _, got := range []*Step{
		OfPairs([]string{"sequence_id", "sequence_end"}, []string{"7", "true"}),
		OfJSON("/v2/models/m/infer", "", []byte(`{"parameters":{"sequence_id":7,"sequence_end":true}}`)),
		OfJSON("/api/svc", "sequence_id=7&sequence_end=1", nil),
		OfModelInfer(message),
	} {
		if got == nil || !got.IsEnd || got.IsStart {
			t.Errorf("%+v", got)
		}
	}
}

func TestAHeaderSaysASequence(t *testing.T) {
	wants(t, "one", OfHeader([]string{" 7 "}), "\x007", false)
	wants(t, "none", OfHeader(nil), "", false)
	wants(t, "two", OfHeader([]string{"7", "8"}), "", false)
}

func FuzzMessages(f *testing.F) {
	f.Add(entry("sequence_id", []byte{0x10, 7}))
	f.Fuzz(func(_ *testing.T, message []byte) {
		OfRequest(message)
		OfModelInfer(message)
		OfJSON("/v2/models/m/infer", "", message)
	})
}
