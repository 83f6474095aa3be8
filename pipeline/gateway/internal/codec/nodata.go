package codec

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// mostName is how many characters of a field's name are shown.
const mostName = 40

// NoData returns the text that the door refuses a request with whose fields are unknown, as in plain
// JSON, and none of them key, value or tensors; "" for any other. The text is JSON, and an object.
func NoData(text []byte) string {
	reader := json.NewDecoder(bytes.NewReader(text))
	reader.UseNumber()
	if _, err := reader.Token(); err != nil {
		return ""
	}
	unknown, isUnknown := "", false
	for reader.More() {
		token, err := reader.Token()
		name, isName := token.(string)
		if err != nil || !isName {
			return ""
		}
		switch name {
		case "key", "value", "tensors":
			return ""
		case "name", "method", "logid", "clientip":
		default:
			if !isUnknown {
				unknown, isUnknown = name, true
			}
		}
		var value json.RawMessage
		if err := reader.Decode(&value); err != nil {
			return ""
		}
	}
	if !isUnknown {
		return ""
	}
	return "the request has " + shownField(unknown) + " and none of key, value and tensors; expected pairs, like " +
		`{"key": ["x"], "value": ["0.1"]}, or tensors; POST /api/<name> takes plain JSON, like {"x": 0.1}`
}

func shownField(name string) string {
	isOther := func(char rune) bool { return char < ' ' || char == '"' || char == '\\' || char == 0x7f }
	if utf8.RuneCountInString(name) > mostName || strings.ContainsFunc(name, isOther) {
		return "other fields"
	}
	return `the field "` + name + `"`
}
