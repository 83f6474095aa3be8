//go:build !linux

package main

import "syscall"

// limitUnacknowledged leaves the system's own limit: only Linux has a portable name for another.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
