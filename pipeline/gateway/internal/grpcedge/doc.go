// Package grpcedge takes gRPC from callers and asks pipeline servers on their links. It reads no message:
// the bytes of each pass unchanged, by unary calls and streams. Callers get the statuses, texts and trailers
// of the gRPC port inside a server (pipeline/frontends/grpc/server.py); tests/conformance/frontends/grpc
// holds both to one table.
package grpcedge
