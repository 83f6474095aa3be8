package upstream

import (
	"slices"
	"time"

	"pipeline/gateway/internal/balance"
	"pipeline/gateway/internal/config"
	"pipeline/gateway/internal/sequence"
)

// Work is a kind of requests. Whose turn it is is known for each: with one turn for all, two kinds that
// alternate would
// each have one backend do everything.
type Work int

// Kinds of work, by who can do it.
const (
	Calls       Work = iota // gRPC, or the link
	WebRequests             // the HTTP port
	Scrapes                 // the HTTP port's metrics
	works
)

// of returns who can do a kind of work.
func (c *candidates) of(work Work) []*Backend {
	if work == Calls {
		return c.RPC
	}
	return c.Web
}

// pick returns the backend to ask, except the ones that were asked; nil: there is no other. A second attempt
// takes no turn of its own, so
// that all keep their share.
func (p *Pool) pick(want *Want, asked []*Backend) *Backend {
	work := want.Work
	list := p.Candidates.Load().of(work)
	if want.First != nil && len(asked) == 0 && slices.Contains(list, want.First) {
		return want.First
	}
	if want.Step != nil && p.sequences != nil {
		return p.pickFor(want.Step, list, asked)
	}
	turn := p.turns[work].Load()
	if len(asked) == 0 {
		turn = p.turns[work].Add(1)
	}
	if p.policy == config.LeastPending {
		return leastPending(list, turn, asked)
	}
	return roundRobin(list, turn, asked)
}

// IsSticky says whether it matters to which sequence a request belongs.
func (p *Pool) IsSticky() bool { return p.sequences != nil }

// pickFor returns the backend to ask for a step of a sequence: the one that has the sequence, as long as it
// can be reached, ready or retiring. A sequence that begins, or whose backend is lost, gets the backend with
// the highest weight.
func (p *Pool) pickFor(step *sequence.Step, list []*Backend, asked []*Backend) *Backend {
	now := time.Now()
	var chosen *Backend
	if known, isKnown := p.sequences.Find(step.ID, now); isKnown && !step.IsStart && known.isReached.Load() && !slices.Contains(asked, known) {
		chosen = known
	} else if chosen = wantsMost(step.ID, list, asked); chosen != nil {
		p.sequences.Put(step.ID, chosen, now)
	}
	if step.IsEnd {
		p.sequences.Drop(step.ID)
	}
	return chosen
}

// wantsMost returns who is to have a sequence.
func wantsMost(id string, list []*Backend, asked []*Backend) (chosen *Backend) {
	most := uint64(0)
	for _, each := range list {
		if slices.Contains(asked, each) {
			continue
		}
		if weight := balance.Weight(each.Name, id); chosen == nil || weight > most {
			chosen, most = each, weight
		}
	}
	return chosen
}

// roundRobin returns whose turn it is. One that is tried again after an ejection has one request at a time:
// beside that
// it is asked only if there is nobody else.
func roundRobin(list []*Backend, turn uint64, asked []*Backend) (trying *Backend) {
	for offset := range uint64(len(list)) {
		each := list[(turn+offset)%uint64(len(list))]
		switch {
		case slices.Contains(asked, each):
		case !each.isBusyTrying():
			return each
		case trying == nil:
			trying = each
		}
	}
	return trying
}

// leastPending returns who has the fewest requests, of several the one whose turn it is.
func leastPending(list []*Backend, turn uint64, asked []*Backend) (least *Backend) {
	var trying *Backend
	fewest := int64(0)
	for offset := range uint64(len(list)) {
		each := list[(turn+offset)%uint64(len(list))]
		pending := each.Pending()
		switch {
		case slices.Contains(asked, each):
		case each.isBusyTrying():
			trying = each
		case least == nil || pending < fewest:
			least, fewest = each, pending
		}
	}
	if least == nil {
		return trying
	}
	return least
}
