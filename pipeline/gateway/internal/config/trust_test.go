package config

import "testing"

func TestTheOriginIsTheLastOneThatIsNotTrusted(t *testing.T) {
	var trust Trust
	if err := trust.Add([]string{"10.0.0.0/8", "fd00::/8"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, each := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:5", nil, "192.0.2.1"},
		{"192.0.2.1:5", []string{"198.51.100.9"}, "192.0.2.1"},
		{"10.0.0.1:5", nil, "10.0.0.1"},
		{"10.0.0.1:5", []string{"198.51.100.9"}, "198.51.100.9"},
		{"10.0.0.1:5", []string{"203.0.113.7, 198.51.100.9"}, "198.51.100.9"}, // the first is what the caller says itself
		{"10.0.0.1:5", []string{"203.0.113.7", "198.51.100.9, 10.0.0.2"}, "198.51.100.9"},
		{"[::ffff:10.0.0.1]:5", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"[fd00::1]:5", []string{"198.51.100.9:80"}, "198.51.100.9"},
		{"10.0.0.1:5", []string{"203.0.113.7, unknown"}, "10.0.0.1"},
		{"10.0.0.1:5", []string{""}, "10.0.0.1"},
		{"10.0.0.1:5", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"@", []string{"198.51.100.9"}, "::"}, // a Unix socket
	} {
		if _, got := trust.Origin(each.peer, each.forwarded); got.String() != each.want {
			t.Errorf("%s for %q: %s, not %s", each.peer, each.forwarded, got, each.want)
		}
	}
}

func TestCallersMaySetWhatTheListSays(t *testing.T) {
	var any, few Trust
	if err := few.Add(nil, []string{"X-User"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"x-user": true, "x-admin": false, "cookie": false, "content-type": true, "traceparent": true, "access-control-request-method": true,
		"x-forwarded-for": true, "": false,
	} {
		if !any.Allows(name) || few.Allows(name) != want {
			t.Errorf("%q: %v", name, few.Allows(name))
		}
	}
	if few.Add(nil, []string{"a b"}) == nil || few.Add([]string{"x"}, nil) == nil {
		t.Error("invalid names are accepted")
	}
}
