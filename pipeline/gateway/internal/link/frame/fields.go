package frame

import (
	"bytes"
	"encoding/base64"
	"iter"
	"strings"
)

const binarySuffix = "-bin"

// Fields are names and values, each ended by a line end: headers, metadata or trailers. The values of names that
// end with "-bin" are bytes, in base64.
type Fields []byte

// AppendField adds a name, in lower case, and its value. A value with a line end, which no header can have, is left out.
func AppendField(fields []byte, name, value string) []byte {
	if strings.HasSuffix(name, binarySuffix) {
		fields = append(append(fields, name...), '\n')
		return append(base64.StdEncoding.AppendEncode(fields, []byte(value)), '\n')
	}
	if strings.IndexByte(value, '\n') >= 0 || strings.IndexByte(name, '\n') >= 0 {
		return fields
	}
	return append(append(append(append(fields, name...), '\n'), value...), '\n')
}

// All returns each name and its value, in their order.
func (f Fields) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := []byte(f); len(rest) > 0; {
			var name, value []byte
			name, rest, _ = bytes.Cut(rest, []byte{'\n'})
			value, rest, _ = bytes.Cut(rest, []byte{'\n'})
			text := string(value)
			if bytes.HasSuffix(name, []byte(binarySuffix)) {
				decoded, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					continue
				}
				text = string(decoded)
			}
			if !yield(string(name), text) {
				return
			}
		}
	}
}

// Get returns the first value of a name; "" if there is none.
func (f Fields) Get(name string) string {
	for each, value := range f.All() {
		if each == name {
			return value
		}
	}
	return ""
}
