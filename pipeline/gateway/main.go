// Command pipeline-gateway is an HTTP edge in front of many pipeline servers.
//
// POST /<name>/<method> becomes a gRPC call to one of the backends, by the code that
// protoc-gen-grpc-gateway makes of pipeline_service.proto; every other path goes to the HTTP port of
// a backend as it came. Each answer equals that of the HTTP door inside a server
// (pipeline/frontends/http/server.py): what only the door can judge is handed over to it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc/grpclog"
)

// version is the product's; a build sets it with -ldflags "-X main.version=...".
var version = "dev"

const (
	exitOK     = 0
	exitFailed = 1 // cannot serve
	exitUsage  = 2 // cannot be served: the command line is wrong
)

func main() {
	// What gRPC and the generated code say in passing is said elsewhere, or of callers that have left.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main, for tests as well: it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	log := newLogger(stderr)
	cfg, err := parseFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage())
		return exitOK
	case errors.Is(err, errVersion):
		fmt.Fprintf(stdout, "pipeline-gateway %s\n", version)
		return exitOK
	case err != nil:
		log.errorf("%v; pipeline-gateway --help lists the options", err)
		return exitUsage
	}
	tuneMemory(cfg.maxBufferedBytes, memoryLimit())
	if err := serve(cfg, log, thisProcess()); err != nil {
		log.errorf("%v", err)
		return exitFailed
	}
	return exitOK
}
