package failure

import (
	"testing"
)

func TestARefusalHasTheShapeOfAResponse(t *testing.T) {
	got := string((&Error{ErrNo: 8000, Text: "<é> \"\n\xff"}).Body())
	want := `{"err_no":8000,"err_msg":"<é> \"\n\ufffd","key":[],"value":[],"tensors":[]}`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
