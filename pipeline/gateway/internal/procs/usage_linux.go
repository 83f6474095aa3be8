package procs

import (
	"syscall"
	"time"
)

// usage returns the time that all threads of this process have run for.
func usage() time.Duration {
	var said syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &said) // of oneself it cannot fail
	return time.Duration(said.Utime.Nano() + said.Stime.Nano())
}
