package codec

import (
	"encoding/base64"
	"math"
	"strconv"

	"pipeline/gateway/pipelinepb"
)

// The JSON of a Response, byte for byte what the door writes (pipeline/proto/pipeline/json.py): original
// field names in the order of their numbers, defaults included, no white space, and floats that
// stay floats (1 is 1.0). protojson writes the same values, but other bytes from build to build.

// AppendResponse appends the JSON object of a response.
func AppendResponse(text []byte, response *pipelinepb.Response) []byte {
	text = append(text, `{"err_no":`...)
	text = strconv.AppendInt(text, int64(response.ErrNo), 10)
	text = append(text, `,"err_msg":`...)
	text = appendString(text, response.ErrMsg)
	text = append(text, `,"key":`...)
	text = appendList(text, response.Key, appendString)
	text = append(text, `,"value":`...)
	text = appendList(text, response.Value, appendString)
	text = append(text, `,"tensors":`...)
	text = appendList(text, response.Tensors, appendTensor)
	return append(text, '}')
}

func appendTensor(text []byte, tensor *pipelinepb.Tensor) []byte {
	text = append(text, `{"int64_data":`...)
	text = appendList(text, tensor.Int64Data, appendQuoted)
	text = append(text, `,"float_data":`...)
	text = appendList(text, tensor.FloatData, appendFloat32)
	text = append(text, `,"int_data":`...)
	text = appendList(text, tensor.IntData, appendInt[int32])
	text = append(text, `,"float64_data":`...)
	text = appendList(text, tensor.Float64Data, appendFloat64)
	text = append(text, `,"uint32_data":`...)
	text = appendList(text, tensor.Uint32Data, appendInt[uint32])
	text = append(text, `,"bool_data":`...)
	text = appendList(text, tensor.BoolData, strconv.AppendBool)
	text = append(text, `,"complex64_data":`...)
	text = appendList(text, tensor.Complex64Data, appendFloat32)
	text = append(text, `,"complex128_data":`...)
	text = appendList(text, tensor.Complex128Data, appendFloat64)
	text = append(text, `,"str_data":`...)
	text = appendList(text, tensor.StrData, appendString)
	text = append(text, `,"byte_data":"`...)
	text = base64.StdEncoding.AppendEncode(text, tensor.ByteData)
	text = append(text, `","elem_type":`...)
	text = appendInt(text, tensor.ElemType)
	text = append(text, `,"shape":`...)
	text = appendList(text, tensor.Shape, appendInt[int32])
	text = append(text, `,"lod":`...)
	text = appendList(text, tensor.Lod, appendInt[int32])
	text = append(text, `,"name":`...)
	text = appendString(text, tensor.Name)
	return append(text, '}')
}

func appendList[T any](text []byte, list []T, appendOne func([]byte, T) []byte) []byte {
	text = append(text, '[')
	for at, each := range list {
		if at > 0 {
			text = append(text, ',')
		}
		text = appendOne(text, each)
	}
	return append(text, ']')
}

func appendInt[T int32 | uint32](text []byte, number T) []byte {
	return strconv.AppendInt(text, int64(number), 10)
}

// appendQuoted writes an int64: to many readers JSON numbers are doubles, so it is a string.
func appendQuoted(text []byte, number int64) []byte {
	text = append(text, '"')
	text = strconv.AppendInt(text, number, 10)
	return append(text, '"')
}

func appendFloat32(text []byte, number float32) []byte {
	return appendFloat(text, float64(number), 32, float64(float32(1e-6)), float64(float32(1e13)))
}

func appendFloat64(text []byte, number float64) []byte {
	return appendFloat(text, number, 64, 1e-5, 1e16)
}

// appendFloat writes the shortest digits that say which number of so many bits it is: between the
// bounds with a point, beyond them with an exponent. What JSON has no number for is a string.
func appendFloat(text []byte, number float64, bits int, smallest, large float64) []byte {
	size := math.Abs(number)
	switch {
	case math.IsNaN(number):
		return append(text, `"NaN"`...)
	case math.IsInf(number, 1):
		return append(text, `"Infinity"`...)
	case math.IsInf(number, -1):
		return append(text, `"-Infinity"`...)
	case size == 0 || (size >= smallest && size < large):
		return appendPoint(strconv.AppendFloat(text, number, 'f', -1, bits), len(text))
	}
	return shortExponent(strconv.AppendFloat(text, number, 'e', -1, bits))
}

// appendPoint makes a float of what is written from start on, if it looks like an integer.
func appendPoint(text []byte, start int) []byte {
	for _, each := range text[start:] {
		if each == '.' {
			return text
		}
	}
	return append(text, ".0"...)
}

// shortExponent turns Go's e-07 at the end into e-7.
func shortExponent(text []byte) []byte {
	sign, zero := len(text)-3, len(text)-2
	if text[zero] == '0' && (text[sign] == '+' || text[sign] == '-') {
		return append(text[:zero], text[zero+1])
	}
	return text
}

const hexDigits = "0123456789abcdef"

// escapes of control characters that have a letter.
var escapes = [' ']byte{'\b': 'b', '\t': 't', '\n': 'n', '\f': 'f', '\r': 'r'}

// appendString writes a string, which a protobuf guarantees to be UTF-8.
func appendString(text []byte, value string) []byte {
	text = append(text, '"')
	start := 0
	for at := range len(value) {
		char := value[at]
		if char >= ' ' && char != '"' && char != '\\' {
			continue
		}
		text = append(append(text, value[start:at]...), '\\')
		switch {
		case char >= ' ':
			text = append(text, char)
		case escapes[char] != 0:
			text = append(text, escapes[char])
		default:
			text = append(text, 'u', '0', '0', hexDigits[char>>4], hexDigits[char&15])
		}
		start = at + 1
	}
	return append(append(text, value[start:]...), '"')
}
