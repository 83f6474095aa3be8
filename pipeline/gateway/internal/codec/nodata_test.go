package codec

import (
	"strings"
	"testing"
)

func TestRequestsWithoutDataAreToldWhatWasFound(t *testing.T) {
	many := strings.Repeat
	for text, want := range map[string]string{
		`{"label": "zh", "prob": 0.86}`:              `the field "label" and`,
		`{"logid": 1, "": {"key": []}, "u": [1]}`:    `the field "" and`,
		`{"Key": ["x"]}`:                             `the field "Key" and`,
		"{\"\\u8bcd\": 1}":                           `the field "词" and`,
		`{"a\"b": 1}`:                                "other fields and",
		`{"` + many("é", 40) + `": 1}`:               many("é", 40),
		`{"` + many("é", 41) + `": 1}`:               "other fields and",
		`{"u": 1, "key": null}`:                      "",
		`{"u": {"a": [[{}], 1e999]}, "tensors": []}`: "",
		`{"value": ["1"]}`:                           "",
		`{"name": "x", "method": "y", "logid": "1"}`: "",
		`{"clientip": null}`:                         "",
		`{}`:                                         "",
		`[1]`:                                        "",
		``:                                           "",
	} {
		got := NoData([]byte(text))
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%.60s: got %q", text, got)
		}
	}
}
