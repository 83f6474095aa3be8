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

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/gateway"
	"pipeline/gateway/internal/link/frame"
	"pipeline/gateway/internal/logging"
	"pipeline/gateway/internal/memory"
	"pipeline/gateway/internal/procs"
	"pipeline/gateway/internal/version"
)

const (
	exitOK     = 0
	exitFailed = 1 // cannot serve
	exitUsage  = 2 // cannot be served: the command line is wrong
)

func main() {
	procs.LookRarely()
	// What gRPC and the generated code say in passing is said elsewhere, or of callers that have left.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main, for tests as well: it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	log := logging.New(stderr)
	cfg, err := config.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, config.Usage())
		return exitOK
	case errors.Is(err, config.ErrVersion):
		fmt.Fprintf(stdout, "pipeline-gateway %s (link %d)\n", version.Version, frame.Version)
		return exitOK
	case err != nil:
		log.Error(err.Error() + "; pipeline-gateway --help lists the options")
		return exitUsage
	}
	if cfg.LogFormat == config.JSONLog {
		log = logging.NewJSON(stderr, cfg.HasParent)
	}
	memory.Tune(cfg.MaxBufferedBytes, memory.Limit())
	if err := gateway.Serve(cfg, log, gateway.ThisProcess()); err != nil {
		log.Error(err.Error())
		return exitFailed
	}
	return exitOK
}
