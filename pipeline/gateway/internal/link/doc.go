// Package link asks the server whose child the gateway is, on a Unix socket: many calls at once, unary ones and
// streams, in frames of at most 64 KiB that take turns. docs/gateway.md describes the format ("The link");
// pipeline/frontends/link has the other side. Frames are read and written in frame.go alone.
//
// A Client keeps the connection. Client.Unary asks for one answer, Client.Open begins a stream of them.
package link
