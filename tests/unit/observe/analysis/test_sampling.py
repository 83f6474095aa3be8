"""The sample is a fair part of the requests, each with all of its rows."""

from __future__ import annotations

import numpy as np
import pytest
from fake_service import MS, never_ran, request, requests_of, turn, turns_of
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import REQUEST, SPAN, Rows
from pipeline.observe.analysis.sampling import SampledRows, Sampler

SECOND_NS = 1_000 * MS
NO_TURNS = np.array([], SPAN)


def requests_at(first_id: int, count: int, begin_ns: int, end_ns: int, step: int = 1) -> Rows:
    """`count` requests spread over that time, each of 1 ms."""
    rows = np.zeros(count, REQUEST)
    rows["data_id"] = first_id + step * np.arange(count)
    rows["end_ns"] = np.linspace(begin_ns, end_ns, count + 1)[1:]
    rows["start_ns"] = rows["end_ns"] - MS
    return rows


def run(
    sampler: Sampler, rates: list[int], step: int = 1, folds: int = 10
) -> list[list[SampledRows]]:
    """A second of each rate in turn; what was chosen in each of them."""
    seconds, first_id, now = [], 0, SECOND_NS
    for rate in rates:
        chosen = []
        for _ in range(folds):
            rows = requests_at(first_id, rate // folds, now, now + SECOND_NS // folds, step)
            chosen.append(sampler.choose(NO_TURNS, rows))
            first_id, now = first_id + step * len(rows), now + SECOND_NS // folds
        seconds.append(chosen)
    return seconds


def sampled(second: list[SampledRows]) -> int:
    return sum(len(chosen.requests) for chosen in second)


def weight(second: list[SampledRows]) -> int:
    return sum(int(chosen.strides.requests.sum()) for chosen in second if chosen.strides)


@pytest.mark.parametrize("rate", [300, 1_000, 15_000, 100_000])
def test_a_sample_of_many_requests_has_the_wanted_size_and_weights(rate):
    first, *seconds = run(Sampler(200), [rate] * 8)
    assert sampled(first) < 200 * 3, "it is soon known that there are many"
    for second in seconds[1:]:
        assert 75 <= sampled(second) <= 210
    assert sum(map(weight, seconds)) == pytest.approx(rate * 7, 0.05)


def test_few_requests_are_all_sampled():
    assert [sampled(second) for second in run(Sampler(200), [190, 10, 200])] == [190, 10, 200]


def test_a_sampler_returns_to_all_requests_after_a_peak():
    seconds = run(Sampler(200), [15_000, 15_000, 100, 100, 100])
    assert [sampled(second) for second in seconds[-2:]] == [100, 100]


def test_a_rate_that_wavers_does_not_change_the_sample_each_second():
    seconds = run(Sampler(200), [3_200, 3_200, *[3_100, 3_300] * 5])
    strides = {int(found.strides.requests.max()) for second in seconds[4:] for found in second}
    assert len(strides) == 1


@pytest.mark.parametrize("step", [1, 2, 3, 8])
@pytest.mark.parametrize("copy", [0, 1])
def test_replicas_with_gaps_in_data_ids_sample_as_many(copy, step):
    sampler = Sampler(200, step)
    sampler.choose(NO_TURNS, requests_at(copy, 1, SECOND_NS, SECOND_NS + MS))
    seconds = run(sampler, [8_000] * 5, step)
    assert all(75 <= sampled(second) <= 210 for second in seconds[2:])


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 900)), min_size=1, max_size=30),
    st.integers(1, 50),
)
def test_a_request_is_sampled_with_all_its_spans_or_not_at_all(folds, per_s):
    """Whatever happened to the sample since it began: its turns come folds before its end."""
    sampler = Sampler(per_s)
    told_turns, told_requests, late, first_id, now = {}, {}, [], 0, SECOND_NS
    for count, took_ms in [*folds, (1, 1), (1, 1)]:
        rows = requests_at(first_id, count, now, now + took_ms * MS)
        turns = turns_of(
            *(turn(data_id=i, batch=i, end_ns=now + MS) for i in rows["data_id"].tolist())
        )
        ending = late.pop(0) if len(late) > 1 else rows[:0]
        if turns.size or ending.size:
            chosen = sampler.choose(turns, ending)
            assert chosen.strides is not None
            for result, into in (
                ((chosen.spans, chosen.strides.spans), told_turns),
                ((chosen.requests, chosen.strides.requests), told_requests),
            ):
                into |= zip(result[0]["data_id"].tolist(), result[1].tolist(), strict=True)
        late.append(rows)
        first_id, now = first_id + count, now + took_ms * MS
    ended = range(max([*told_requests, 0]))
    assert {i: told_turns.get(i) for i in ended} == {i: told_requests.get(i) for i in ended}


def test_a_batch_with_a_sampled_request_is_complete_and_marks_it():
    sampler = Sampler(10)
    sampler.choose(NO_TURNS, requests_at(0, 1_000, SECOND_NS, SECOND_NS + MS))
    turns = turns_of(*(turn(data_id=1_000 + i, batch=i // 16) for i in range(1_600)))
    chosen = sampler.choose(turns, requests_of())
    assert chosen.strides is not None
    batches, sizes = np.unique(chosen.spans["batch"], return_counts=True)
    assert set(sizes.tolist()) == {16}
    assert 2 <= len(batches) <= 40
    for batch in batches:
        assert chosen.strides.spans[chosen.spans["batch"] == batch].any()


def test_spans_that_never_ran_are_sampled_one_by_one():
    sampler = Sampler(10)
    sampler.choose(NO_TURNS, requests_at(0, 1_000, SECOND_NS, SECOND_NS + MS))
    chosen = sampler.choose(turns_of(*(never_ran(data_id=1_000 + i) for i in range(1_600))),
                            requests_of())  # fmt: skip
    assert chosen.strides is not None
    assert 0 < len(chosen.spans) < 40
    assert chosen.strides.spans.all()


def test_a_partly_sampled_second_has_its_busy_time():
    """One after the other, each of 1 ms; then with gaps of 1 ms, in some of which there is one."""
    sampler = Sampler(10)
    rows = requests_at(0, 1_000, SECOND_NS, 2 * SECOND_NS)
    loads = sampler.choose(NO_TURNS, rows).loads
    assert loads.tolist() == [(SECOND_NS, 2 * SECOND_NS, SECOND_NS)]
    rows = requests_at(1_000, 500, 2 * SECOND_NS, 3 * SECOND_NS)
    begun = 2 * SECOND_NS + MS
    long_one = requests_of(request(1_500, start_ns=begun, end_ns=begun + 100 * MS))
    loads = sampler.choose(NO_TURNS, np.concatenate([rows, long_one])).loads
    assert loads.tolist() == [(2 * SECOND_NS, 3 * SECOND_NS, 500 * MS + 50 * MS)]


def test_the_end_reports_the_rest_of_a_second():
    sampler = Sampler(10)
    assert not len(sampler.end())
    assert not len(
        sampler.choose(NO_TURNS, requests_at(0, 100, SECOND_NS, SECOND_NS * 3 // 2)).loads
    )
    assert sampler.end()["busy_ns"].tolist() == [100 * MS]
    assert not len(sampler.end())
