package procs

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lateness = 500 * time.Microsecond // of timers of the monitor thread of Go's runtime (sysmon)
	usual    = 50 * time.Microsecond  // of other threads, Linux's default
	begunKey = "PIPELINE_GATEWAY_BEGUN"
	procsKey = "GOMAXPROCS"
)

// LookRarely has the monitor thread of Go's runtime wake less often than every 20 us, its period in a busy program.
// That thread inherits the timer slack of the thread that creates it, before our code runs. So the program starts
// itself again, with slack on its first thread and with one processor, which keeps other threads from inheriting it;
// then both settings return to normal. If the system does not allow it, nothing changes. Call it first in main.
func LookRarely() {
	if os.Getenv(begunKey) != "" {
		beUsual()
		_, _ = os.Unsetenv(begunKey), os.Unsetenv(procsKey) // cannot fail for valid names
		return
	}
	if os.Getenv(procsKey) != "" {
		return // the user has set it
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	program, err := os.Executable()
	if err != nil || !beLate(lateness) {
		return
	}
	_ = syscall.Exec(program, os.Args, append(os.Environ(), begunKey+"=1", procsKey+"=1"))
	beLate(usual)
}

// beUsual gives the timers of all threads that run our code their usual slack.
func beUsual() {
	beLate(usual)
	runtime.LockOSThread() // which has Go make the thread that makes others later on: as this one is by now
	runtime.UnlockOSThread()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	var told sync.WaitGroup
	isTold := make(chan struct{})
	for range threads { // each takes a thread for itself, those first that are there
		told.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			beLate(usual)
			told.Done()
			<-isTold
		}()
	}
	told.Wait()
	close(isTold)
}

// beLate says how late the timers of this thread may be.
func beLate(by time.Duration) bool {
	return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(by), 0, 0, 0) == nil
}
