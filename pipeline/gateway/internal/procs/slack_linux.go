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
	lateness = 500 * time.Microsecond // of timers of the thread with which Go's runtime looks after itself
	usual    = 50 * time.Microsecond  // of others, as Linux has it
	begunKey = "PIPELINE_GATEWAY_BEGUN"
	procsKey = "GOMAXPROCS"
)

// LookRarely has Go's runtime look after itself less often than every 20 us, which it does as long as anything goes
// on. Its thread has the lateness of timers of the one that makes it, before any code of ours: so the program begins
// anew, with its first thread late and, for few others to be made by that, with one processor; then these are as
// usual again. Where the system does not allow it all goes on as it is. It is to be called first of all.
func LookRarely() {
	if os.Getenv(begunKey) != "" {
		beUsual()
		_, _ = os.Unsetenv(begunKey), os.Unsetenv(procsKey) // of names that are right it cannot fail
		return
	}
	if os.Getenv(procsKey) != "" {
		return // somebody knows better
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

// beUsual has the timers of all threads that run our code be as usual.
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
