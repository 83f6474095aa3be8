package sockets

import (
	"context"
	"net"
	"path/filepath"
	"testing"
)

func TestAServerOfAnotherUserIsNoneOfOurs(t *testing.T) {
	place := Endpoint{"unix", "/s"}
	for _, test := range []struct {
		user, own int
		isOurs    bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 0, false}, {1001, 1000, false}} {
		if err := checkUser(place, test.user, test.own); (err == nil) != test.isOurs {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestOurOwnServerIsConnectedTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := PrivateTo(Endpoint{"unix", path})(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
