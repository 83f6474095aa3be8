package upstream

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/sequence"
)

// Want is what a request needs of who is asked.
type Want struct {
	Work     Work
	IsSafe   bool           // it may be done twice
	MayHedge bool           // also at once
	Step     *sequence.Step // of a sequence; nil: of none. It is never done twice
	First    *Backend       // is asked first, if it can be; nil: whose turn it is
	Asked    string         // the name of the backend whose answer counts, as Ask notes it

	first Attempt
}

// Attempt is a request at a backend.
type Attempt struct {
	*Backend
	pool   *Pool
	isKept bool
}

// Keep lets the attempt outlive the function that tries it: until the returned function receives its outcome.
func (a *Attempt) Keep() (end func(Outcome)) {
	a.isKept = true
	return a.end
}

func (a *Attempt) end(outcome Outcome) {
	a.Backend.pending.Add(-1)
	a.pool.note(a.Backend, outcome)
}

// begin counts a request that a backend is asked.
func (p *Pool) begin(want *Want, chosen *Backend) *Attempt {
	chosen.pending.Add(1)
	attempt := &want.first
	if attempt.Backend != nil {
		attempt = &Attempt{}
	}
	attempt.Backend, attempt.pool = chosen, p
	return attempt
}

// Outcome is what a request says of the backend that was asked.
type Outcome int

// Outcomes. Of a caller that leaves, and of time that is over, nobody knows.
const (
	Neither Outcome = iota
	Good
	Bad
)

// OutcomeOf says what the end of an attempt says of the backend, where ctx is the caller's time with some
// slack.
func OutcomeOf(ctx context.Context, err error) Outcome {
	var said *failure.Error
	switch {
	case err == nil:
		return Good
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Bad // it should have said so itself
	case ctx.Err() != nil:
		return Neither
	case errors.Is(err, ErrNeverLeft):
		return Bad
	case errors.As(err, &said) && said.Head != nil:
		return Good
	case said == nil || said.IsRefused || said.ErrNo == failure.CodeOverloaded:
		return Neither
	case said.Status == http.StatusNotImplemented || said.Status == http.StatusGatewayTimeout || said.Code == codes.Canceled:
		return Neither
	case said.Status >= http.StatusInternalServerError:
		return Bad
	}
	return Good
}

// OutcomeOfAnswer returns what an answer over HTTP tells about the backend. A full backend says when to come
// again.
func OutcomeOfAnswer(status int, header http.Header) Outcome {
	switch {
	case status < http.StatusInternalServerError:
		return Good
	case header.Get("Retry-After") != "" || status == http.StatusNotImplemented || status == http.StatusGatewayTimeout:
		return Neither
	}
	return Bad
}

// isLost says whether a request may have been begun, and will not be answered.
func isLost(err error) bool {
	var said *failure.Error
	return errors.As(err, &said) && said.Status == http.StatusServiceUnavailable && said.ErrNo == failure.CodeClosed &&
		(said.Code == codes.OK || said.Code == codes.Unavailable)
}

// Ask has one backend after the other try a request, as far as that is safe. One that cannot have been seen
// may go to each of
// them; one that a backend refused to begin, or that is safe and got lost, to one more, if the budget has
// room. The error
// is the last one's or, if nobody was reached, a *failure.Error.
func Ask[T any](ctx context.Context, p *Pool, want *Want, try func(context.Context, *Attempt) (T, error)) (T, error) {
	p.budget.Note()
	if want.MayHedge && p.hedgeAfter > 0 && want.Step == nil {
		return hedge(ctx, p, want, try)
	}
	return inTurn(ctx, p, want, &trail{}, try)
}

// inTurn is Ask without a hedge.
func inTurn[T any](ctx context.Context, p *Pool, want *Want, asked *trail, try func(context.Context, *Attempt) (T, error)) (answer T, err error) {
	err = ErrNeverLeft
	for isRepeated := false; ; {
		chosen := p.pick(want, asked.all())
		if chosen == nil {
			if errors.Is(err, ErrNeverLeft) {
				err = p.Nobody()
			}
			return answer, err
		}
		if asked.add(chosen) > 1 {
			chosen.retries.Add(1)
			p.stats.Retries.Inc()
		}
		want.Asked = chosen.Name
		attempt := p.begin(want, chosen)
		answer, err = try(ctx, attempt)
		if !attempt.isKept {
			attempt.end(OutcomeOf(ctx, err))
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return answer, err
		case errors.Is(err, ErrNeverLeft):
		case isRepeated || !mayRepeat(want, err) || !p.hasOther(want.Work, asked) || !p.takeRetry():
			return answer, err
		default:
			isRepeated = true
		}
	}
}

// mayRepeat says whether a request that a backend has seen may be sent once more.
func mayRepeat(want *Want, err error) bool {
	var said *failure.Error
	if want.Step != nil && !want.Step.IsStart { // nobody else knows the sequence
		return false
	}
	return (errors.As(err, &said) && said.IsRefused) || (want.IsSafe && want.Step == nil && isLost(err))
}

// hasOther says whether there is anybody who was not asked yet.
func (p *Pool) hasOther(work Work, asked *trail) bool {
	all := asked.all()
	return slices.ContainsFunc(p.Candidates.Load().of(work), func(each *Backend) bool { return !slices.Contains(all, each) })
}

// takeRetry takes one from the budget, if that has any left.
func (p *Pool) takeRetry() bool {
	if p.budget.Take(time.Now()) {
		return true
	}
	p.stats.RetriesRefused.Inc()
	return false
}
