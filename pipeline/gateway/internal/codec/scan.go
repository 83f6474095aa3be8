package codec

import (
	"bytes"
	"strconv"
	"unsafe"

	"pipeline/gateway/pipelinepb"
)

// MaxDepth is the depth of JSON that the gateway reads itself. The door's parser has its own limit, which
// counts.
const MaxDepth = 512

// mostDigits of a number without an exponent certainly fit a double.
const mostDigits = 308

// IsOdd says whether JSON has something that protojson accepts and the door's reader refuses: very deep
// arrays, numbers that do not fit a double, and malformed numbers (1e). All of these may be in unknown fields.
func IsOdd(text []byte) bool {
	depth := 0
	for at := 0; at < len(text); at++ {
		switch char := text[at]; {
		case char == '"':
			at = endOfString(text, at+1) - 1
		case char == '[' || char == '{':
			if depth++; depth > MaxDepth {
				return true
			}
		case char == ']' || char == '}':
			depth--
		case isDigit(char):
			end, hasExponent := endOfNumber(text, at)
			if (hasExponent || end-at > mostDigits) && !isDouble(text[at:end]) {
				return true
			}
			at = end - 1
		}
	}
	return false
}

// endOfString returns where a JSON string ends that begins behind its opening quote.
func endOfString(text []byte, start int) int {
	for at := start; ; {
		next := bytes.IndexByte(text[at:], '"')
		if next < 0 {
			return len(text)
		}
		at += next + 1
		escapes := 0
		for at-2-escapes >= start && text[at-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}

// endOfNumber returns where a number ends that begins with a digit.
func endOfNumber(text []byte, start int) (end int, hasExponent bool) {
	for end = start; end < len(text); end++ {
		switch char := text[end]; {
		case isDigit(char), char == '.', char == '+', char == '-':
		case char == 'e', char == 'E':
			hasExponent = true
		default:
			return end, hasExponent
		}
	}
	return end, hasExponent
}

// isDouble says whether a number is one, and not beyond all doubles.
func isDouble(number []byte) bool {
	_, err := strconv.ParseFloat(string(number), 64)
	return err == nil
}

func isDigit(char byte) bool { return char >= '0' && char <= '9' }

const (
	TensorBytes = int64(unsafe.Sizeof(pipelinepb.Tensor{})) + 16
	valueBytes  = 16 // of a string without its text, or a number and what is behind it in its array
)

// WeightOf returns how many bytes the request that a JSON text stands for takes in memory, roughly: `{}`
// is a tensor of hundreds of bytes.
func WeightOf(text []byte) int64 {
	tensors, values := int64(0), int64(0)
	for at := 0; at < len(text); at++ {
		switch text[at] {
		case '"':
			at = endOfString(text, at+1) - 1
		case '{':
			tensors++
		case ',':
			values++
		}
	}
	return int64(len(text)) + tensors*TensorBytes + values*valueBytes
}
