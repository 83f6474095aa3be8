package config

import (
	"errors"
	"flag"
	"fmt"
	"slices"
)

// NoFD is the value for no inherited socket.
const NoFD = -1

// Socket is an address or inherited socket to listen on.
type Socket struct {
	Address string // host:port; "": nowhere
	FD      int    // of an inherited socket; NoFD: the address says where
}

// IsAsked reports whether the gateway listens there.
func (s Socket) IsAsked() bool { return s.FD != NoFD || s.Address != "" }

// addPorts adds the options that say where requests are taken.
func addPorts(flags *flag.FlagSet, cfg *Config) {
	flags.StringVar(&cfg.HTTP.Address, "listen", DefaultListen, "host:port for HTTP; port 0: any free port; empty: no HTTP")
	flags.IntVar(&cfg.HTTP.FD, "listen-fd", NoFD, "number of an inherited listening socket, instead of --listen")
	flags.StringVar(&cfg.GRPC.Address, "grpc-listen", "", "host:port for gRPC; default: no gRPC")
	flags.IntVar(&cfg.GRPC.FD, "grpc-listen-fd", NoFD, "number of an inherited listening socket, instead of --grpc-listen")
	flags.BoolVar(&cfg.OnePort, "one-port", false, "serve gRPC on the port of HTTP")
	flags.StringVar(&cfg.Admin.Address, "admin-listen", "", "host:port for requests that need the roles observe or admin, which the other ports then refuse; default: the other ports serve them")
	flags.IntVar(&cfg.Admin.FD, "admin-listen-fd", NoFD, "number of an inherited listening socket, instead of --admin-listen")
}

// checkPorts returns what is wrong with them.
func (c *Config) checkPorts(isListenSet bool) error {
	takesGRPC := c.GRPC.IsAsked() || c.OnePort
	switch {
	case isListenSet && c.HTTP.FD != NoFD:
		return errors.New("--listen and --listen-fd exclude each other: give one")
	case c.GRPC.Address != "" && c.GRPC.FD != NoFD:
		return errors.New("--grpc-listen and --grpc-listen-fd exclude each other: give one")
	case c.Admin.Address != "" && c.Admin.FD != NoFD:
		return errors.New("--admin-listen and --admin-listen-fd exclude each other: give one")
	case c.HTTP.FD < NoFD:
		return fmt.Errorf("--listen-fd %d is not a descriptor", c.HTTP.FD)
	case c.GRPC.FD < NoFD:
		return fmt.Errorf("--grpc-listen-fd %d is not a descriptor", c.GRPC.FD)
	case c.Admin.FD < NoFD:
		return fmt.Errorf("--admin-listen-fd %d is not a descriptor", c.Admin.FD)
	case !c.HTTP.IsAsked() && !c.GRPC.IsAsked():
		return errors.New("nothing to listen on: give --listen or --grpc-listen")
	case c.OnePort && (c.GRPC.IsAsked() || !c.HTTP.IsAsked()):
		return errors.New("--one-port: give --listen, and no --grpc-listen")
	case takesGRPC && c.HasLinks() && c.hasOthers():
		return errors.New("--grpc-listen, --one-port: use gRPC for link: backends or for other backends, not for both")
	}
	return nil
}

// HasLinks says whether a backend is reached by a link. If so it is a server's own gateway, and there are none but its copies.
func (c *Config) HasLinks() bool {
	return slices.ContainsFunc(c.Backends, func(each Backend) bool { return each.IsLink })
}

// hasOthers says whether there are, or may be, backends elsewhere.
func (c *Config) hasOthers() bool {
	isElsewhere := func(each Backend) bool { return !each.IsLink }
	return c.BackendsFile != "" || len(c.Lookups) > 0 || slices.ContainsFunc(c.Backends, isElsewhere)
}
