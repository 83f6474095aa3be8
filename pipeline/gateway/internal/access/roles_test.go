package access

import (
	"encoding/json"
	"os"
	"testing"
)

// row is one of tests/support/golden/access_roles.json.
type row struct{ Door, Method, Path, Role string }

func rows(t *testing.T) (found []row) {
	t.Helper()
	data, err := os.ReadFile("../../../../tests/support/golden/access_roles.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRolesOfTheTable(t *testing.T) {
	for _, each := range rows(t) {
		got := OfMethod(each.Path)
		if each.Door != "grpc" {
			got = OfRequest(each.Method, each.Path, each.Door == "inference")
		}
		if string(got) != each.Role {
			t.Errorf("%s %s %s: %q, not %q", each.Door, each.Method, each.Path, got, each.Role)
		}
	}
}
