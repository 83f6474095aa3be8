// Package sequence finds the sequence of a request, in each form in which callers give it.
package sequence

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Header is that of a sequence for which a request has no other word, or whose body is not looked at.
const Header = "Pipeline-Sequence-Id"

// Names of parameters, and of pairs.
const (
	idName    = "sequence_id"
	startName = "sequence_start"
	endName   = "sequence_end"
)

// Step is what a request says of its sequence.
type Step struct {
	ID             string // of one model; two models may have sequences of the same number
	IsStart, IsEnd bool
}

// step returns one; nil: there is no id, which callers may also send as 0.
func step(model, id, start, end string) *Step {
	if id == "" || id == "0" {
		return nil
	}
	return &Step{model + "\x00" + id, isTrue(start), isTrue(end)}
}

// isTrue reads a flag as servers do.
func isTrue(text string) bool { return text == "1" || strings.EqualFold(text, "true") }

// OfHeader returns that of a header's values: each request may be the first one.
func OfHeader(values []string) *Step {
	if len(values) != 1 {
		return nil
	}
	return step("", strings.TrimSpace(values[0]), "", "")
}

// OfPairs returns that of a request in pairs.
func OfPairs(keys, values []string) *Step {
	said := func(name string) string {
		if at := slices.Index(keys, name); at >= 0 && at < len(values) {
			return values[at]
		}
		return ""
	}
	return step("", said(idName), said(startName), said(endName))
}

// said has the members of an object that say it.
type said struct {
	ID    json.RawMessage `json:"sequence_id"`
	Start json.RawMessage `json:"sequence_start"`
	End   json.RawMessage `json:"sequence_end"`
}

// text returns a number, a text or a truth value as text; "" for all else.
func text(value json.RawMessage) string {
	if len(value) > 0 && value[0] == '"' {
		var found string
		_ = json.Unmarshal(value, &found) // it is valid: it was read before
		return found
	}
	if len(value) > 0 && strings.IndexByte("{[n", value[0]) < 0 {
		return string(value)
	}
	return ""
}

// OfJSON returns that of a request of Triton's protocol, of /api, or in pairs: its path, its query, and the
// JSON of its body.
func OfJSON(path, query string, body []byte) *Step {
	model := path // of /api, and of all paths without a model
	if rest, isModel := strings.CutPrefix(path, "/v2/models/"); isModel {
		model, _, _ = strings.Cut(rest, "/")
	}
	if strings.Contains(query, idName) {
		values, _ := url.ParseQuery(query)
		return step(model, values.Get(idName), values.Get(startName), values.Get(endName))
	}
	if !bytes.Contains(body, []byte(idName)) {
		return nil
	}
	var found struct {
		said
		Parameters said
		Key, Value []string
	}
	if json.Unmarshal(body, &found) != nil {
		return nil // which its server says
	}
	if pairs := OfPairs(found.Key, found.Value); pairs != nil {
		return pairs
	}
	if len(found.Parameters.ID) > 0 {
		found.said = found.Parameters
	}
	return step(model, text(found.ID), text(found.Start), text(found.End))
}

// Fields of messages.
const (
	keyField, valueField         = 1, 2 // of the pipeline's Request
	modelField, parametersField  = 1, 4 // of ModelInferRequest
	boolField, intField          = 1, 2 // of InferParameter
	stringField, unsignedField   = 3, 5
	entryKeyField, entryValField = 1, 2 // of a map
)

// fields calls a function for each field of a message; false: it is not a message.
func fields(message []byte, take func(number protowire.Number, kind protowire.Type, value []byte)) bool {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return false
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(number, kind, message); size < 0 {
			return false
		}
		take(number, kind, message[:size])
		message = message[size:]
	}
	return true
}

// bytesOf returns what a field of bytes has.
func bytesOf(kind protowire.Type, value []byte) []byte {
	if kind != protowire.BytesType {
		return nil
	}
	found, _ := protowire.ConsumeBytes(value)
	return found
}

// OfRequest returns that of a Request of the pipeline, in protobuf.
func OfRequest(message []byte) *Step {
	if !bytes.Contains(message, []byte(idName)) {
		return nil
	}
	var keys, values []string
	isOne := fields(message, func(number protowire.Number, kind protowire.Type, value []byte) {
		switch number {
		case keyField:
			keys = append(keys, string(bytesOf(kind, value)))
		case valueField:
			values = append(values, string(bytesOf(kind, value)))
		}
	})
	if !isOne {
		return nil
	}
	return OfPairs(keys, values)
}

// OfModelInfer returns that of a ModelInferRequest, in protobuf.
func OfModelInfer(message []byte) *Step {
	if !bytes.Contains(message, []byte(idName)) {
		return nil
	}
	var model, id, start, end string
	isOne := fields(message, func(number protowire.Number, kind protowire.Type, value []byte) {
		switch number {
		case modelField:
			model = string(bytesOf(kind, value))
		case parametersField:
			switch name, said := parameter(bytesOf(kind, value)); name {
			case idName:
				id = said
			case startName:
				start = said
			case endName:
				end = said
			}
		}
	})
	if !isOne {
		return nil
	}
	return step(model, id, start, end)
}

// parameter returns the name and the value of an entry of parameters, as text.
func parameter(entry []byte) (name, said string) {
	fields(entry, func(number protowire.Number, kind protowire.Type, value []byte) {
		switch number {
		case entryKeyField:
			name = string(bytesOf(kind, value))
		case entryValField:
			said = choice(bytesOf(kind, value))
		}
	})
	return name, said
}

func choice(value []byte) (said string) {
	fields(value, func(number protowire.Number, kind protowire.Type, value []byte) {
		switch number {
		case boolField, intField, unsignedField: // a negative number is that of 64 bits without a sign
			if kind == protowire.VarintType {
				bits, _ := protowire.ConsumeVarint(value)
				said = strconv.FormatUint(bits, 10)
			}
		case stringField:
			said = string(bytesOf(kind, value))
		}
	})
	return said
}
