package procs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	playsKey = "PROCS_TEST_PLAYS_THE_PROGRAM"
	secret   = "a secret"
)

// TestMain is also the program that starts itself again, if playsKey is set: it prints its arguments, and the timer
// slack of its threads.
func TestMain(m *testing.M) {
	if os.Getenv(playsKey) == "" {
		os.Exit(m.Run())
	}
	LookRarely()
	runtime.GOMAXPROCS(4)
	late := make(chan string)
	for range 2 {
		go func() { // each on a thread of its own, not the first one
			runtime.LockOSThread()
			slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			late <- fmt.Sprint(slack, err)
		}()
	}
	fmt.Println(os.Getpid(), os.Args[1:], "environment:", os.Getenv(begunKey)+os.Getenv(procsKey))
	fmt.Println(<-late, <-late)
	fmt.Println(mostPatient())
}

// mostPatient returns the largest timer slack of a thread, or that it cannot be read.
func mostPatient() string {
	most := 0
	threads, _ := filepath.Glob("/proc/self/task/*")
	for _, each := range threads {
		said, err := os.ReadFile(filepath.Join("/proc", filepath.Base(each), "timerslack_ns"))
		slack, notNumber := strconv.Atoi(strings.TrimSpace(string(said)))
		if err != nil || notNumber != nil {
			return secret
		}
		most = max(most, slack)
	}
	return strconv.Itoa(most)
}

func played(t *testing.T, more ...string) (pid int, said []string) {
	t.Helper()
	program := exec.Command(os.Args[0], "--some", "arguments")
	program.Env = append(slices.DeleteFunc(os.Environ(), func(each string) bool {
		return strings.HasPrefix(each, procsKey+"=")
	}), append(more, playsKey+"=1")...)
	out, err := program.Output()
	if err != nil {
		t.Fatal(err)
	}
	return program.Process.Pid, strings.Split(strings.TrimSpace(string(out)), "\n")
}

// Go may move what makes the other threads as usual to another thread in between, hardly ever.
func TestTheThreadThatLooksAfterAllIsLateAndNoOther(t *testing.T) {
	const times, enough = 20, 17
	areUsual := 0
	for range times {
		pid, said := played(t)
		if wanted := fmt.Sprint(pid, " [--some arguments] environment: "); said[0] != wanted {
			t.Fatalf("the program says %q, not %q", said[0], wanted)
		}
		if said[1] == "50000 <nil> 50000 <nil>" {
			areUsual++
		}
		if said[2] != "500000" && said[2] != secret {
			t.Errorf("its most patient thread may be late by %s ns", said[2])
		}
	}
	if areUsual < enough {
		t.Errorf("threads are late in %d programs of %d", times-areUsual, times)
	}
}

func TestWhoHasSaidHowManyProcessorsIsLeftAlone(t *testing.T) {
	pid, said := played(t, procsKey+"=3")
	wanted := fmt.Sprint(pid, " [--some arguments] environment: 3")
	if said[0] != wanted || said[1] != "50000 <nil> 50000 <nil>" {
		t.Errorf("the program says %q", said)
	}
}
