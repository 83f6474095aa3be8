package codec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/pipelinepb"
)

const plainTensor = `{"int64_data":[1,"-9223372036854775808"],"float_data":[1.5,-0,-0.0,1e-45],"int_data":[-2147483648],"float64_data":[1e308],` +
	`"uint32_data":[4294967295],"bool_data":[true,false],"complex64_data":[1,2],"complex128_data":[0.1,2E+5],"str_data":["é"],"byte_data":"QQ==",` +
	`"elem_type":1,"shape":[1],"lod":[0],"name":"n"}`

var plainSeeds = []string{
	`{}`, ` { } `, `{"key":["a","b"],"value":["1",""],"name":"n","method":"m","logid":"7","clientip":"c"}`, `{"logid":-0,"tensors":[]}`,
	`{"tensors":[` + plainTensor + "," + plainTensor + `]}`, `{"tensors":[{"floatData":[1 , 2]	,"elemType" :1}` + "\r\n]}",
	strings.NewReplacer("_d", "D", "_t", "T").Replace(`{"tensors":[` + plainTensor + `]}`),
}

var otherSeeds = []string{
	``, `{`, `[]`, `null`, `{}x`, "{}\x00", `{"key":null}`, `{"key":["\u0061"]}`, "{\"key\":[\"\xff\"]}", `{"key":["a",]}`, `{"key":[,"a"]}`, `{"key":["a" "b"]}`,
	`{,"key":[]}`, `{"key":[],}`, `{"key":[]"value":[]}`, `{"key":[],"key":[]}`, `{"x":1}`, `{"logid":1.0}`, `{"logid":"1}`, `{"logid":1"}`, `{"logid":" 1"}`, `{"logid":9223372036854775808}`,
	`{"tensors":[{"elem_type":1,"elemType":1}]}`, `{"tensors":[{"float_data":["NaN"]}]}`, `{"tensors":[{"float_data":[01]}]}`, `{"tensors":[{"float_data":[1.]}]}`,
	`{"tensors":[{"float_data":[.5]}]}`, `{"tensors":[{"float_data":[1e]}]}`, `{"tensors":[{"float_data":[1e39]}]}`, `{"tensors":[{"float_data":[NaN]}]}`, `{"tensors":[{"float_data":[inf]}]}`,
	`{"tensors":[{"float_data":[0x1]}]}`, `{"tensors":[{"float_data":[1_0]}]}`, `{"tensors":[{"byte_data":"Q"}]}`, `{"tensors":[{"byte_data":"_-8="}]}`, `{"tensors":[{"uint32_data":[-1]}]}`,
	`{"tensors":[{"bool_data":[tru]}]}`, `{"tensors":[{"bool_data":[truex]}]}`, `{"tensors":[{"int_data":[2147483648]}]}`, `{"tensors":[{"shape":[1.0]}]}`, `{"tensors":{}}`, `{"tensors":[null]}`, `{"tensors":[{"float_data":[-]}]}`,
}

func TestPlainRequestsAreReadWithoutProtojson(t *testing.T) {
	for _, text := range plainSeeds {
		if !ReadPlain([]byte(text), &pipelinepb.Request{}) {
			t.Errorf("not read: %s", text)
		}
	}
	for _, text := range otherSeeds {
		if ReadPlain([]byte(text), &pipelinepb.Request{}) {
			t.Errorf("read: %s", text)
		}
	}
}

func TestEveryFieldCanBeReadPlainly(t *testing.T) {
	request, tensor := (&pipelinepb.Request{}).ProtoReflect().Descriptor().Fields(), (&pipelinepb.Tensor{}).ProtoReflect().Descriptor().Fields()
	var got pipelinepb.Request
	if !ReadPlain([]byte(`{"key":["a"],"value":["b"],"name":"n","method":"m","logid":7,"clientip":"c","tensors":[`+plainTensor+`]}`), &got) {
		t.Fatal("not read")
	}
	for at := range request.Len() {
		if !got.ProtoReflect().Has(request.Get(at)) {
			t.Errorf("%s was not read", request.Get(at).Name())
		}
	}
	for at := range tensor.Len() {
		if !got.Tensors[0].ProtoReflect().Has(tensor.Get(at)) {
			t.Errorf("%s of a tensor was not read", tensor.Get(at).Name())
		}
	}
}

// FuzzPlain compares with protojson: what is read plainly it reads too, as the same message.
func FuzzPlain(f *testing.F) {
	for _, seed := range append(plainSeeds, otherSeeds...) {
		f.Add([]byte(seed))
	}
	other := protojson.UnmarshalOptions{DiscardUnknown: true}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want pipelinepb.Request
		if !ReadPlain(text, &got) {
			return
		}
		if IsOdd(text) {
			t.Fatalf("%q is for the door to judge", text)
		}
		if err := other.Unmarshal(text, &want); err != nil || !gatewaytest.Same(&got, &want) {
			t.Fatalf("%q became %v, for protojson it is %v (%v)", text, &got, &want, err)
		}
	})
}
