package procs

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const playsKey = "PROCS_TEST_PLAYS_THE_PROGRAM"

// TestMain is the program that is begun anew, where it is told so.
func TestMain(m *testing.M) {
	if os.Getenv(playsKey) == "" {
		os.Exit(m.Run())
	}
	TakeItEasy()
	late := make(chan string)
	for range 2 {
		go func() { // on another thread than that of the other one, which is not ours either
			runtime.LockOSThread()
			slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			late <- fmt.Sprint(slack, err)
		}()
	}
	fmt.Println(os.Getpid(), <-late, <-late, os.Getenv(begunKey) == "", os.Args[1:])
}

func TestAllThreadsMayBeLate(t *testing.T) {
	program := exec.Command(os.Args[0], "--some", "arguments")
	program.Env = append(os.Environ(), playsKey+"=1")
	said, err := program.Output()
	if err != nil {
		t.Fatal(err)
	}
	late := fmt.Sprint(int(lateness), " <nil>")
	wanted := fmt.Sprint(program.Process.Pid, " ", late, " ", late, " true [--some arguments]")
	if got := strings.TrimSpace(string(said)); got != wanted {
		t.Errorf("the program says %q, not %q", got, wanted)
	}
}
