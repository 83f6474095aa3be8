package procs

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lateness = 500 * time.Microsecond
	begunKey = "PIPELINE_GATEWAY_BEGUN" // in the environment of the program that was begun anew
)

// TakeItEasy begins this program anew, with timers that may be late by half a millisecond. Go's runtime looks after
// itself every 20 us as long as anything goes on, and a thread keeps the lateness with which it was made: that one is
// there before us. Where the system does not allow it all goes on as it is.
func TakeItEasy() {
	if os.Getenv(begunKey) != "" {
		_ = os.Unsetenv(begunKey) // of a name that is right it cannot fail
		return
	}
	program, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread() // of which the new program has its lateness
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(lateness), 0, 0, 0) != nil {
		return
	}
	_ = syscall.Exec(program, os.Args, append(os.Environ(), begunKey+"=1"))
}
