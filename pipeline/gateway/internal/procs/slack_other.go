//go:build !linux

package procs

// LookRarely does nothing here.
func LookRarely() {}
