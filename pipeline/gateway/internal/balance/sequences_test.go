package balance

import (
	"strconv"
	"testing"
)

func TestASequenceIsWhereItWasPut(t *testing.T) {
	s := NewSequences[string]()
	if _, isKnown := s.Find("1", start); isKnown {
		t.Error("it is known before")
	}
	s.Put("1", "a", start)
	s.Put("2", "a", start)
	s.Put("1", "b", start)
	if got, isKnown := s.Find("1", start); !isKnown || got != "b" {
		t.Errorf("%q", got)
	}
	if s.Count("a", start) != 1 || s.Count("b", start) != 1 {
		t.Errorf("%v", s.counts)
	}
	s.Drop("1")
	s.Drop("1")
	if _, isKnown := s.Find("1", start); isKnown || s.Count("b", start) != 0 {
		t.Errorf("%v", s.counts)
	}
}

func TestASequenceThatIsIdleForLongIsForgotten(t *testing.T) {
	s := NewSequences[string]()
	s.Put("1", "a", start)
	s.Put("2", "a", start)
	half := start.Add(sequenceIdle / 2)
	s.Find("1", half)
	late := start.Add(sequenceIdle + 1)
	if _, isKnown := s.Find("2", late); isKnown || s.Count("a", late) != 1 {
		t.Errorf("%v", s.counts)
	}
	if s.Count("a", half.Add(sequenceIdle+1)) != 0 || len(s.counts) != 0 {
		t.Errorf("%v", s.counts)
	}
}

func TestSoManyAreKnownAndNoMore(t *testing.T) {
	s := NewSequences[string]()
	for number := range mostSequences + 1 {
		s.Put(strconv.Itoa(number), "a", start)
	}
	if _, isKnown := s.Find("0", start); isKnown || s.Count("a", start) != mostSequences {
		t.Errorf("%v", s.counts)
	}
}

// owner returns who wants a sequence most.
func owner(id string, names []string) (found string) {
	most := uint64(0)
	for _, name := range names {
		if weight := Weight(name, id); found == "" || weight > most {
			found, most = name, weight
		}
	}
	return found
}

func TestAMemberThatGoesMovesItsOwnSequencesOnly(t *testing.T) {
	names := []string{"10.0.0.1:18070", "10.0.0.2:18070", "10.0.0.3:18070", "10.0.0.4:18070"}
	counts := map[string]int{}
	for number := range 10_000 {
		id := strconv.Itoa(number)
		before := owner(id, names)
		counts[before]++
		if after := owner(id, names[1:]); before != names[0] && after != before {
			t.Fatalf("%s moved from %s to %s", id, before, after)
		}
	}
	for name, count := range counts {
		if count < 2250 || count > 2750 {
			t.Errorf("%s has %d of 10,000", name, count)
		}
	}
}
