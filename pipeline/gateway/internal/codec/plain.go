// Package codec reads the JSON of a Request as most callers write it, and writes that of a Response as the
// door inside a server does.
package codec

import (
	"pipeline/gateway/pipelinepb"
)

// ReadPlain reads a Request from JSON as most callers write it: known fields, each once, values of
// their own types, and text without escapes. Whatever else it meets it leaves to protojson, which
// reads all of it, several times slower: false, and the request is to be forgotten.
func ReadPlain(text []byte, request *pipelinepb.Request) bool {
	p := &plain{text: text}
	return p.object(func(name []byte) (number int, isRead bool) {
		switch string(name) {
		case "key":
			return 0, appendAll(p, &request.Key, (*plain).string)
		case "value":
			return 1, appendAll(p, &request.Value, (*plain).string)
		case "name":
			return 2, set(p, &request.Name, (*plain).string)
		case "method":
			return 3, set(p, &request.Method, (*plain).string)
		case "logid":
			return 4, set(p, &request.Logid, (*plain).int64)
		case "clientip":
			return 5, set(p, &request.Clientip, (*plain).string)
		case "tensors":
			return 6, appendAll(p, &request.Tensors, (*plain).tensor)
		}
		return 0, false
	}) && p.peek() == 0 && p.at == len(text)
}

func (p *plain) tensor() (*pipelinepb.Tensor, bool) {
	tensor := &pipelinepb.Tensor{}
	return tensor, p.object(func(name []byte) (number int, isRead bool) {
		switch string(name) {
		case "int64_data", "int64Data":
			return 0, appendAll(p, &tensor.Int64Data, (*plain).int64)
		case "float_data", "floatData":
			return 1, appendAll(p, &tensor.FloatData, (*plain).float32)
		case "int_data", "intData":
			return 2, appendAll(p, &tensor.IntData, integer[int32])
		case "float64_data", "float64Data":
			return 3, appendAll(p, &tensor.Float64Data, (*plain).float64)
		case "uint32_data", "uint32Data":
			return 4, appendAll(p, &tensor.Uint32Data, integer[uint32])
		case "bool_data", "boolData":
			return 5, appendAll(p, &tensor.BoolData, (*plain).bool)
		case "complex64_data", "complex64Data":
			return 6, appendAll(p, &tensor.Complex64Data, (*plain).float32)
		case "complex128_data", "complex128Data":
			return 7, appendAll(p, &tensor.Complex128Data, (*plain).float64)
		case "str_data", "strData":
			return 8, appendAll(p, &tensor.StrData, (*plain).string)
		case "byte_data", "byteData":
			return 9, set(p, &tensor.ByteData, (*plain).bytes)
		case "elem_type", "elemType":
			return 10, set(p, &tensor.ElemType, integer[int32])
		case "shape":
			return 11, appendAll(p, &tensor.Shape, integer[int32])
		case "lod":
			return 12, appendAll(p, &tensor.Lod, integer[int32])
		case "name":
			return 13, set(p, &tensor.Name, (*plain).string)
		}
		return 0, false
	})
}
