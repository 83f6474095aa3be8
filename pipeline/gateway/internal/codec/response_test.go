package codec

import (
	"math"
	"testing"
)

func TestFloatsStayFloats(t *testing.T) {
	for number, want := range map[float64]string{
		0: "0.0", 1: "1.0", -1: "-1.0", 0.1: "0.1", 1e15: "1000000000000000.0", 1e16: "1e+16", 1.5e300: "1.5e+300",
		1e-5: "0.00001", 1e-6: "1e-6", 1.25e-7: "1.25e-7", 0.00012: "0.00012", 5e-324: "5e-324", math.Copysign(0, -1): "-0.0",
		math.Inf(1): `"Infinity"`, math.Inf(-1): `"-Infinity"`, 16777217: "16777217.0", 1e100: "1e+100", 1e-10: "1e-10",
	} {
		if got := string(appendFloat64(nil, number)); got != want {
			t.Errorf("%v: got %s, want %s", number, got, want)
		}
	}
	for number, want := range map[float32]string{0.1: "0.1", 3: "3.0", 1e-6: "0.000001", 1e-7: "1e-7", 1e12: "1000000000000.0", 1e13: "1e+13", 3.4028235e38: "3.4028235e+38", 1e-45: "1e-45"} {
		if got := string(appendFloat32(nil, number)); got != want {
			t.Errorf("%v: got %s, want %s", number, got, want)
		}
	}
}
