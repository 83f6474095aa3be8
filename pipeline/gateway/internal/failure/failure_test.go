package failure

import (
	"strings"
	"testing"
)

func TestARefusalHasTheShapeOfAResponse(t *testing.T) {
	got := string((&Error{ErrNo: 8000, Text: "<é> \"\n\xff"}).Body())
	want := `{"err_no":8000,"err_msg":"<é> \"\n\ufffd","key":[],"value":[],"tensors":[]}`
	// Go 1.27 writes the character itself, earlier ones its escape.
	if strings.ReplaceAll(got, "\ufffd", `\ufffd`) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
