package codec

import (
	"strings"
	"testing"
)

func TestWhatOnlyTheDoorRefusesIsSeen(t *testing.T) {
	many := strings.Repeat
	tenthOfMost, over := "1"+many("0", 307), "2"+many("0", 308)
	for text, want := range map[string]bool{
		``: false, `1`: false, many("[]", 2*MaxDepth): false, many("[", MaxDepth): false, many("[", MaxDepth+1): true,
		many(`{"a":`, MaxDepth+1): true, `"` + many("[", 2*MaxDepth) + `"`: false, `["\"` + many("[", 2*MaxDepth) + `"]`: false,
		`["\\",` + many("[", MaxDepth) + `]`: true, `"[`: false, `"\`: false, `"\"`: false,
		`1e99`: false, `1e308`: false, `1E+309`: true, `-1e309`: true, `1e-400`: false, `"1e400"`: false, `true`: false, `[false,1]`: false,
		`1.7976931348623158e308`: false, `1.7976931348623159e308`: true, `1e` + many("9", 99): true,
		tenthOfMost: false, tenthOfMost + "0": false, over: true, "0." + over: false, over + "e-9": false,
		`1e`: true, `[1E]`: true, `{"a":1e ,"b":2}`: true, `1e+`: true, `[1e-]`: true, `1.5e,`: true, `1ee5`: true, `e`: false, `[1e5,1e]`: true,
	} {
		if got := IsOdd([]byte(text)); got != want {
			t.Errorf("%.60s: got %v", text, got)
		}
	}
}
