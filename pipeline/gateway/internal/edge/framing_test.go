package edge

import (
	"strings"
	"testing"
)

const wholeHead = "POST / HTTP/1.1\r\nHost: h\r\n"

func TestHeadsThatCanBeReadInTwoWays(t *testing.T) {
	for _, each := range []struct {
		sent   string
		number int64 // of the request at fault; 0: none
		why    string
	}{
		{wholeHead + "\r\n" + wholeHead + "\r\n", 0, ""},
		{wholeHead + "Content-Length: 3\r\n\r\nabc" + wholeHead + "\r\n", 0, ""},
		{wholeHead + "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n" + wholeHead + "\r\n", 0, ""},
		{wholeHead + "content-length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 1, "beside chunks"},
		{wholeHead + "Transfer-encoding:chunked\r\nCONTENT-LENGTH:3\r\n\r\n", 1, "beside chunks"},
		{wholeHead + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 1, "two Content-Lengths"},
		{wholeHead + "A: b\r\n c\r\n\r\n", 1, "two lines"},
		{wholeHead + "A: b\n\r\n", 1, "without CR"},
		{wholeHead + "A: b\r\n\n", 1, "without CR"},
		{"POST / HTTP/1.2\r\n\r\n", 1, "version"},
		{wholeHead + "Content-Length: 2\r\n\r\nab" + wholeHead + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 2, "beside chunks"},
		{wholeHead + "Transfer-Encoding: chunked\r\n\r\n5\r\n\r\n\r\nx\r\n0\r\n\r\n" + wholeHead + "A: b\n\r\n", 2, "without CR"},
		{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 1, "chunks of HTTP/1.0"},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n\n", 0, ""},
		{wholeHead + "Content-Length: x\r\n\r\n", 0, ""}, // which package http refuses
		{wholeHead + "A: " + strings.Repeat("b", 1<<18), 0, ""},
		{strings.Repeat("A: b\r\n", 1<<15) + "\n\n", 0, ""},
	} {
		for _, step := range []int{1, 2, 7, 1 << 20} {
			var f framing
			for data := []byte(each.sent); len(data) > 0; {
				taken := min(step, len(data))
				f.feed(data[:taken])
				data = data[taken:]
			}
			if f.faulty.Load() != each.number || !strings.Contains(f.why, each.why) {
				t.Errorf("%.200q by %d: %d, %q", each.sent, step, f.faulty.Load(), f.why)
			}
			if each.number > 0 && (f.whyNot(each.number) == "" || f.whyNot(each.number-1) != "") {
				t.Errorf("%.200q: another request is at fault", each.sent)
			}
			if len(f.line) > maxHeadBytes+headTolerance {
				t.Errorf("%d bytes are kept", len(f.line))
			}
		}
	}
}

func BenchmarkFraming(b *testing.B) {
	sent := []byte(wholeHead + "User-Agent: x\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n" + strings.Repeat("x", 30))
	var f framing
	for b.Loop() {
		f.feed(sent)
	}
}
