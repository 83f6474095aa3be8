package edge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/codec"
	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/pipelinepb"
)

func TestRequestsAreReadFromJSON(t *testing.T) {
	for text, want := range map[string]*pipelinepb.Request{
		``:                                     {},
		`{}`:                                   {},
		` {"key": null, "logid": null}` + "\n": {},
		`{"key":["a"],"value":["1"],"logid":"7"}`:                      {Key: []string{"a"}, Value: []string{"1"}, Logid: 7},
		`{"logid":-9007199254740993,"clientip":"é\u0000"}`:             {Logid: -9007199254740993, Clientip: "é\x00"},
		`{"unknown":{"deep":[1,{}]},"name":"n","key":[]}`:              {Name: "n"},
		`{"tensors":[{"elemType":13,"byteData":"AP8="}]}`:              {Tensors: []*pipelinepb.Tensor{{ElemType: 13, ByteData: []byte{0, 255}}}},
		`{"tensors":[{"elem_type":1,"float_data":[1.5,"-Infinity"]}]}`: {Tensors: []*pipelinepb.Tensor{{ElemType: 1, FloatData: []float32{1.5, float32(math.Inf(-1))}}}},
	} {
		asked, got := &call{plain: []byte(text)}, &pipelinepb.Request{}
		if err := newMarshaler(1 << 20).NewDecoder(asked).Decode(got); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if !proto.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

func TestWhatTheDoorMayJudgeOtherwiseIsLeftToIt(t *testing.T) {
	for _, text := range []string{
		" ", "{", "null", "[]", `"key"`, "{} {}", "{}x", "\xff\xfe", "{\"key\": \"\xc3(\"}", `{"key":["\ud800"]}`,
		`{"key":[1]}`, `{"key":[null]}`, `{"logid":1e999}`, `{"logid":99999999999999999999}`, `{"logid":1,"logid":2}`,
		`{"tensors":[{"shape":[4294967296]}]}`, `{"tensors":[{"float_data":[1e39]}]}`, `{"x":NaN}`,
		`{"x":1e}`, `{"x":1e999}`, `{"x":` + strings.Repeat("9", 400) + `}`, `{"tensors":[{"int64_data":[1e]}]}`,
		`{"x":` + strings.Repeat("[", 2*codec.MaxDepth) + strings.Repeat("]", 2*codec.MaxDepth) + `}`,
	} {
		asked := &call{plain: []byte(text)}
		err := newMarshaler(1 << 20).NewDecoder(asked).Decode(&pipelinepb.Request{})
		if err == nil || asked.fallback == nil || asked.fallback.reason != "json" || asked.fallback.own.Status != 400 {
			t.Errorf("%.80s: %v, %+v", text, err, asked.fallback)
		}
	}
}

func TestResponsesHaveOriginalNamesAndDefaults(t *testing.T) {
	message := &pipelinepb.Response{Tensors: []*pipelinepb.Tensor{{
		Int64Data: []int64{9007199254740993}, FloatData: []float32{0.1, float32(math.NaN())},
	}}}
	text, err := newMarshaler(1 << 20).Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"err_no":0,"err_msg":"","key":[],"value":[],"tensors":[{"int64_data":["9007199254740993"],` +
		`"float_data":[0.1,"NaN"],"int_data":[],"float64_data":[],"uint32_data":[],"bool_data":[],"complex64_data":[],` +
		`"complex128_data":[],"str_data":[],"byte_data":"","elem_type":0,"shape":[],"lod":[],"name":""}]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestTheMarshalerTakesMessagesOnly(t *testing.T) {
	m := newMarshaler(1 << 20)
	if _, err := m.Marshal("text"); err == nil {
		t.Error("it wrote a string")
	}
	if err := m.Unmarshal([]byte("{}"), new(string)); err == nil {
		t.Error("it read a string")
	}
	var stream strings.Builder
	if err := m.NewEncoder(&stream).Encode(&pipelinepb.Response{ErrNo: 3}); err != nil {
		t.Error(err)
	}
	var back pipelinepb.Response
	if err := m.NewDecoder(strings.NewReader(stream.String())).Decode(&back); err != nil || back.ErrNo != 3 {
		t.Errorf("%v, %v", &back, err)
	}
}

func FuzzResponse(f *testing.F) {
	full, err := proto.Marshal(&pipelinepb.Response{
		ErrNo: -1, ErrMsg: "\x00\t\"\\ é\u2028\U0001f600", Key: []string{"k"}, Value: []string{""},
		Tensors: []*pipelinepb.Tensor{{}, {
			Int64Data: []int64{math.MinInt64}, FloatData: []float32{1e-45, float32(math.NaN()), -0.5}, IntData: []int32{-1},
			Float64Data: []float64{math.MaxFloat64, 1e16, 123456789.125}, Uint32Data: []uint32{math.MaxUint32}, BoolData: []bool{true, false},
			Complex64Data: []float32{1e13, 1e-6}, Complex128Data: []float64{math.Copysign(0, -1), 1e-5}, StrData: []string{"\x1f\x7f"}, ByteData: []byte{0, 255},
			ElemType: 13, Shape: []int32{1, -1}, Lod: []int32{0}, Name: "n",
		}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte{})
	m := newMarshaler(1 << 20)
	f.Fuzz(func(t *testing.T, data []byte) {
		var response, back pipelinepb.Response
		if proto.Unmarshal(data, &response) != nil {
			return
		}
		response.ProtoReflect().SetUnknown(nil)
		for _, tensor := range response.Tensors {
			tensor.ProtoReflect().SetUnknown(nil)
		}
		text, err := m.Marshal(&response)
		if err != nil || !json.Valid(text) {
			t.Fatalf("%v became %q (%v)", &response, text, err)
		}
		if err := m.Unmarshal(text, &back); err != nil || !alike(&response, &back) {
			t.Fatalf("%v became %s, and that %v (%v)", &response, text, &back, err)
		}
	})
}

// alike compares messages by protojson's text: NaNs have many bits and one name.
func alike(one, other proto.Message) bool {
	options := newMarshaler(1 << 20).write
	first, err := options.Marshal(one)
	second, otherErr := options.Marshal(other)
	return err == nil && otherErr == nil && bytes.Equal(first, second)
}

func FuzzMarshaler(f *testing.F) {
	for _, seed := range []string{
		`{"key":["a"],"value":["1"]}`, `{"tensors":[{"float_data":[1,"NaN",-0.0,1e-45],"shape":[4]}]}`,
		`{"logid":"-9223372036854775808"}`, `{"x":[[{"y":"\ud83d\ude00"}]]}`, `{"tensors":[{"byte_data":"_-8="}]}`, `{`, `[]`, "\x00",
	} {
		f.Add([]byte(seed))
	}
	m := newMarshaler(1 << 20)
	f.Fuzz(func(t *testing.T, text []byte) {
		var first, second pipelinepb.Request
		asked := &call{plain: text}
		if err := m.NewDecoder(asked).Decode(&first); err != nil {
			if asked.fallback == nil {
				t.Fatalf("%q is neither read nor left to the door: %v", text, err)
			}
			return
		}
		written, err := m.Marshal(&first)
		if err != nil {
			t.Fatalf("%q cannot be written again: %v", text, err)
		}
		if err := m.Unmarshal(written, &second); err != nil || !gatewaytest.Same(&first, &second) {
			t.Fatalf("%q became %s, and that %v (%v)", text, written, &second, err)
		}
	})
}

// floats is a request with many numbers.
func floats(count int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	text := []byte(`{"tensors":[{"name":"x","elem_type":1,"float_data":[`)
	for at := range count {
		if at > 0 {
			text = append(text, ", "...)
		}
		text = fmt.Appendf(text, "%v", math.Round(random.NormFloat64()*1e8)/1e8)
	}
	return fmt.Appendf(text, `],"shape":[%d]}]}`, count)
}

func BenchmarkRequest(b *testing.B) {
	m := newMarshaler(1 << 20)
	for name, text := range map[string][]byte{"pair": []byte(gatewaytest.Pair), "16 floats": floats(16), "1M floats": floats(1_000_000)} {
		b.Run(name+"/plain", func(b *testing.B) {
			for b.Loop() {
				if err := m.decode(&call{plain: text}, &pipelinepb.Request{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/protojson", func(b *testing.B) {
			for b.Loop() {
				if codec.IsOdd(text) || m.Unmarshal(text, &pipelinepb.Request{}) != nil {
					b.Fatal("not read")
				}
			}
		})
	}
}
