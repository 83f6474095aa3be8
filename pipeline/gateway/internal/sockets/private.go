package sockets

import (
	"context"
	"fmt"
	"net"
	"os"
)

const root = 0

// PrivateTo returns a dialer to a Unix socket that has to be this user's, or root's: a socket of another
// user would receive all data of callers.
func PrivateTo(place Endpoint) func(context.Context, string) (net.Conn, error) {
	dial := DialerTo(place)
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		user, err := PeerUser(conn)
		if err == nil {
			err = checkUser(place, user, os.Geteuid())
		}
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
}

// checkUser returns what is wrong with the user at the other end of a socket.
func checkUser(place Endpoint, user, own int) error {
	if user == root || user == own {
		return nil
	}
	return fmt.Errorf("the server at %s is of user %d, and this gateway of %d", place.Address, user, own)
}
