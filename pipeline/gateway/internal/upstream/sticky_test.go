package upstream

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/sequence"
)

// says sends a step of a sequence, and returns who was asked.
func says(t *testing.T, p *Pool, id int, step sequence.Step) string {
	t.Helper()
	step.ID = strconv.Itoa(id)
	call := &Call{Step: &step}
	if _, err := p.Unary(context.Background(), call); err != nil {
		t.Errorf("%d: %v", id, err)
	}
	return call.Asked
}

var (
	begins = sequence.Step{IsStart: true}
	goesOn = sequence.Step{}
	ends   = sequence.Step{IsEnd: true}
)

// listed makes backends the pool's list, by their letters.
func listed(p *Pool, names string) {
	var list []config.Backend
	for _, each := range names {
		backend, _ := config.ParseRemote(string(each) + ":1")
		list = append(list, backend)
	}
	p.Set(list)
	synctest.Wait()
}

func TestASequenceStaysWhoeverComes(t *testing.T) {
	pooled(t, 2, func(p *Pool, _ []*played) {
		homes := map[int]string{}
		for id := range 100 {
			homes[id] = says(t, p, id, begins)
		}
		listed(p, "abcd")
		news := map[string]int{}
		for id, home := range homes {
			for range 3 {
				if got := says(t, p, id, goesOn); got != home {
					t.Errorf("%d was at %s, is at %s", id, home, got)
				}
			}
			news[says(t, p, 1000+id, begins)]++
		}
		if len(news) != 4 {
			t.Errorf("new ones: %v", news)
		}
	}, "--policy", "sticky")
}

func TestWithoutASequenceRequestsGoRound(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		asks(p, 9)
		wantCounts(t, "each", all, 3, 3, 3)
	}, "--policy", "sticky")
}

func TestASequenceWhoseBackendIsGoneHasAnotherOne(t *testing.T) {
	pooled(t, 3, func(p *Pool, all []*played) {
		home := says(t, p, 7, begins)
		at := int(home[0] - 'a')
		all[at].report(Health{StateDown, "gone"})
		next := says(t, p, 7, goesOn) // which says that it does not know it
		if next == home {
			t.Error("it is asked where nobody is")
		}
		if got := says(t, p, 7, begins); got != next {
			t.Errorf("%s, not %s", got, next)
		}
		all[at].report(Health{State: StateServing})
		if got := says(t, p, 7, goesOn); got != next {
			t.Errorf("it goes back to %s", got)
		}
	}, "--policy", "sticky")
}

func TestABackendThatStopsKeepsItsSequencesAndGetsNoNewOnes(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		home := says(t, p, 7, begins)
		all[home[0]-'a'].report(Health{StateConnected, "it stops"})
		if got := says(t, p, 7, goesOn); got != home {
			t.Errorf("%s, not %s", got, home)
		}
		for id := range 20 {
			if got := says(t, p, 100+id, begins); got == home {
				t.Errorf("%d begins there", id)
			}
		}
	}, "--policy", "sticky")
}

func TestABackendOutOfTheListIsLetGoWhenItsSequencesHaveEnded(t *testing.T) {
	pooled(t, 2, func(p *Pool, _ []*played) {
		home := says(t, p, 7, begins)
		each := p.Backends()[home[0]-'a']
		listed(p, string("ba"[home[0]-'a']))
		time.Sleep(time.Second)
		if got := says(t, p, 7, goesOn); got != home || each.Gone().Err() != nil {
			t.Errorf("%s, not %s; %v", got, home, each.Gone().Err())
		}
		if got := says(t, p, 7, ends); got != home {
			t.Errorf("%s, not %s", got, home)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if each.Gone().Err() == nil {
			t.Error("it is not let go")
		}
	}, "--policy", "sticky")
}

func TestAStepIsNotDoneTwice(t *testing.T) {
	pooled(t, 2, func(p *Pool, all []*played) {
		says(t, p, 7, begins)
		all[0].answer, all[1].answer = fails(errRefused), fails(errRefused)
		counts(all)
		_, err := p.Unary(context.Background(), &Call{IsSafe: true, Step: &sequence.Step{ID: "7"}})
		if err == nil || all[0].calls+all[1].calls != 1 {
			t.Errorf("%v after %d calls", err, all[0].calls+all[1].calls)
		}
		counts(all)
		_, _ = p.Unary(context.Background(), &Call{Step: &sequence.Step{ID: "8", IsStart: true}})
		if got := counts(all); !slices.Equal(got, []int{1, 1}) { // what has not begun may begin elsewhere
			t.Errorf("%v calls", got)
		}
	}, "--policy", "sticky")
}
