"""Recent and Recording: which requests are kept, with which turns, and what a recording holds."""

from __future__ import annotations

import asyncio
import tracemalloc

import msgspec
import numpy as np
import pytest
from doubles import run_virtual, virtual
from fake_page import MS, never_ran, request, rows, turn
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import REQUEST, SPAN, Outcome
from pipeline.frontends.dashboard.recent import (
    MAX_FAILED,
    MAX_RECORDED,
    MAX_SLOW,
    PACK,
    UNPACK,
    Recorded,
    Recording,
    SlowRequestLog,
    read_recording,
)

S = 10**9
EMPTY = rows(SPAN), rows(REQUEST)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 1000 * S

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recent(clock: Clock) -> SlowRequestLog:
    return SlowRequestLog(["a", "b"], clock_ns=clock, wall_ns=lambda: clock.now_ns + 5000 * S)


def fold(recent: SlowRequestLog, turns=(), requests=()) -> None:
    recent.notify(rows(SPAN, *turns), rows(REQUEST, *requests))


def ids(requests) -> list[int]:
    return [kept.data_id for kept in requests]


# The slowest ------------------------------------------------------------------------------


def test_a_slow_request_has_its_spans_in_order_between_unpack_and_pack(recent, clock):
    at = clock.now_ns
    turns = [
        turn(7, 1, at=at + 5 * MS, queue=MS, stages=(MS, 2 * MS, 3 * MS)),
        turn(7, 0, at=at + 2 * MS, stages=(0, 3 * MS, 0)),
    ]
    fold(recent, turns, [request(7, at=at, took=20 * MS, waited=MS, unpacked=MS, packed=4 * MS)])
    (kept,) = recent.slowest()
    assert (kept.data_id, kept.took_ns, kept.outcome) == (7, 20 * MS, Outcome.OK)
    assert kept.ended_ms == (clock.now_ns + 20 * MS + 5000 * S) // MS
    times = [
        (t.op, *(ns // MS for ns in (t.ready_ns, t.start_ns, t.process_end_ns, t.end_ns)))
        for t in kept.spans
    ]
    assert times == [
        (UNPACK, 0, 1, 2, 2),
        ("a", 2, 2, 5, 5),
        ("b", 5, 6, 9, 12),
        (PACK, 16, 16, 20, 20),
    ]


def test_the_slowest_requests_are_logged_up_to_a_limit(recent, clock):
    for first in range(0, 100, 25):
        took = range(first, first + 25)
        fold(recent, requests=[request(ms, at=clock.now_ns, took=ms * MS) for ms in took])
    assert ids(recent.slowest()) == list(range(99, 99 - MAX_SLOW, -1))


@given(st.lists(st.lists(st.integers(0, 10**6), max_size=30), max_size=8))
def test_the_slowest_requests_do_not_depend_on_the_folds(folds):
    recent = SlowRequestLog([], clock_ns=lambda: S)
    for took in folds:
        if took:
            fold(recent, requests=[request(0, at=S, took=ns) for ns in took])
    slowest = sorted((ns for took in folds for ns in took), reverse=True)[:MAX_SLOW]
    assert [kept.took_ns for kept in recent.slowest()] == slowest


def test_a_slow_request_is_removed_after_a_minute_and_the_next_slowest_follows(recent, clock):
    fold(recent, requests=[request(1, at=clock.now_ns - 9 * S, took=9 * S)])
    clock.now_ns += 30 * S
    fold(recent, requests=[request(n, at=clock.now_ns - n * MS, took=n * MS) for n in range(2, 14)])
    assert ids(recent.slowest()) == [1, *range(13, 13 - MAX_SLOW + 1, -1)]
    clock.now_ns += 31 * S
    assert ids(recent.slowest()) == list(range(13, 13 - MAX_SLOW, -1))
    clock.now_ns += 60 * S
    assert recent.slowest() == []


def test_failed_requests_are_not_among_the_slowest(recent, clock):
    fold(
        recent,
        requests=[
            request(1, at=clock.now_ns, took=9 * MS, outcome=Outcome.REJECTED),
            request(2, at=clock.now_ns, took=MS),
        ],
    )
    assert ids(recent.slowest()) == [2]
    assert ids(recent.failures()) == [1]


# Turns ------------------------------------------------------------------------------------


def test_spans_of_earlier_folds_are_included(recent, clock):
    at = clock.now_ns
    fold(recent, [turn(1, 0, at=at), turn(2, 0, at=at)])
    fold(recent, [turn(2, 1, at=at + MS)], [request(2, at=at, took=3 * MS)])
    fold(recent, [turn(1, 1, at=at + MS)], [request(1, at=at, took=9 * MS)])
    for kept in recent.slowest():
        assert [t.op for t in kept.spans] == [UNPACK, "a", "b"]


def test_spans_of_open_requests_outlast_the_limit(recent, clock):
    fold(recent, [turn(0, 0, at=clock.now_ns)])
    for first in range(1, 40_001, 1000):
        numbers = range(first, first + 1000)
        fold(
            recent,
            [turn(n, 0, at=clock.now_ns) for n in numbers],
            [request(n, at=clock.now_ns, took=MS) for n in numbers],
        )
    fold(recent, requests=[request(0, at=clock.now_ns, took=S)])
    slowest = recent.slowest()[0]
    assert [t.op for t in slowest.spans] == [UNPACK, "a"]
    assert len(recent._pending) < 20_000


def test_client_errors_do_not_displace_failures_of_the_service(recent, clock):
    ends = [Outcome.BACKEND, *[Outcome.PRODUCT] * 30, *[Outcome.CANCELED] * 5]
    for number, outcome in enumerate(ends):
        fold(recent, requests=[request(number, at=clock.now_ns, took=MS, outcome=outcome)])
    failures = recent.failures()
    assert [one.data_id for one in failures] == [0, *range(35, 25, -1)]


def test_refused_requests_without_spans_leave_no_memory(recent, clock):
    """A hostile caller's, which are refused when they are unpacked."""
    fold(recent, [turn(-1, 0, at=clock.now_ns)])  # of one that is open all the while
    refused = [request(i, at=clock.now_ns, took=0, outcome=Outcome.BACKEND) for i in range(1000)]
    tracemalloc.start()
    try:
        for _ in range(20):
            fold(recent, requests=refused)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(180):
            fold(recent, requests=refused)
        assert tracemalloc.get_traced_memory()[0] - before < 2**20
    finally:
        tracemalloc.stop()
    fold(recent, requests=[request(-1, at=clock.now_ns, took=MS)])
    assert [t.op for t in recent.slowest()[0].spans] == [UNPACK, "a"]


def test_the_number_of_pieces_is_bounded_at_low_load(recent, clock):
    """Each flush brings a turn or two, and each request is among the slowest or the failed."""
    for data_id in range(1000):
        at = clock.now_ns
        fold(recent, [turn(data_id, 0, at=at)], [request(data_id, at=at, took=data_id)])
    assert len(recent._pending._pieces) < 100


def test_the_requests_of_a_batch_are_counted(recent, clock):
    at = clock.now_ns
    batch = [turn(n, 0, at=at, batch=5) for n in range(3)]
    other = [turn(n, 0, at=at, batch=6) for n in (3, 4)]
    lost = never_ran(5, 0, at=at, end=at + MS, outcome=Outcome.OTHER)
    fold(recent, [*batch, *other, lost], [request(n, at=at, took=MS) for n in range(6)])
    sizes = {kept.data_id: kept.spans[1].batch_requests for kept in recent.slowest()}
    assert sizes == {0: 3, 1: 3, 2: 3, 3: 2, 4: 2, 5: 0}


def test_the_size_of_a_batch_is_right_after_other_spans_were_removed(recent, clock):
    at = clock.now_ns
    lost = never_ran(0, 1, at=at + MS, end=at + MS, outcome=Outcome.OTHER)
    fold(recent, [turn(n, 0, at=at, batch=5) for n in range(8)] + [lost])
    for first in range(1, 20_001, 1000):
        numbers = range(first, first + 1000)
        fold(
            recent,
            [turn(n, 0, at=at) for n in numbers],
            [request(n, at=at, took=MS) for n in numbers],
        )
    fold(recent, requests=[request(0, at=at, took=S)])
    assert [t.batch_requests for t in recent.slowest()[0].spans] == [1, 8, 0]


def test_a_logged_request_has_its_spans_after_thousands_of_others(recent, clock):
    at = clock.now_ns
    ends = {1: Outcome.OK, 2: Outcome.BACKEND}
    fold(
        recent,
        [turn(n, 0, at=at, outcome=outcome) for n, outcome in ends.items()],
        [request(n, at=at, took=S, outcome=outcome) for n, outcome in ends.items()],
    )
    for first in range(10, 20_000, 1000):
        numbers = range(first, first + 1000)
        fold(
            recent,
            [turn(n, 1, at=at) for n in numbers],
            [request(n, at=at, took=MS) for n in numbers],
        )
    for kept in (recent.slowest()[0], recent.failures()[0]):
        assert [t.op for t in kept.spans] == [UNPACK, "a"]


def test_an_op_that_runs_again_and_again_does_not_fill_the_memory(recent, clock):
    turns = [turn(1, 0, at=clock.now_ns + n) for n in range(500)]
    fold(recent, turns, [request(1, at=clock.now_ns, took=S)])
    assert len(recent.slowest()[0].spans) < 110


# Failures ---------------------------------------------------------------------------------


def test_a_failed_request_has_its_error_from_before_or_after_its_row(recent, clock):
    recent.failed(1, 11, ValueError("before"))
    for number in (1, 2):
        failed = request(number, at=clock.now_ns, took=MS, outcome=Outcome.BACKEND, code=3)
        fold(recent, [turn(number, 0, at=clock.now_ns, outcome=Outcome.BACKEND)], [failed])
    recent.failed(2, 22, "after")
    assert [(f.data_id, f.log_id, f.error, f.code) for f in recent.failures()] == [
        (2, 22, "after", 3),
        (1, 11, "before", 3),
    ]
    assert [t.outcome for t in recent.failures()[0].spans] == [Outcome.OK, Outcome.BACKEND]


def test_the_last_failures_do_not_expire(recent, clock):
    for number in range(2 * MAX_FAILED):
        failed = request(number, at=clock.now_ns, took=MS, outcome=Outcome.OTHER)
        fold(recent, requests=[failed])
    clock.now_ns += 10_000 * S
    assert ids(recent.failures()) == list(range(2 * MAX_FAILED - 1, MAX_FAILED - 1, -1))


def test_texts_of_errors_are_cut_and_do_not_pile_up(recent, clock):
    for number in range(10_000):
        recent.failed(number, 0, "x" * 10_000)
    failed = request(9_999, at=clock.now_ns, took=MS, outcome=Outcome.BACKEND)
    fold(recent, requests=[failed])
    assert recent.failures()[0].error == "x" * 500
    assert len(recent._errors) < 1000


def test_texts_of_errors_can_travel(recent, clock):
    """For example the name of a file, not in UTF-8, which no snapshot could carry."""
    recent.failed(1, 0, "no such file: \udcff")
    fold(recent, requests=[request(1, at=clock.now_ns, took=MS, outcome=Outcome.BACKEND)])
    assert msgspec.json.encode(recent.failures())
    assert recent.failures()[0].error == "no such file: \\udcff"


@pytest.mark.parametrize("begun", [0, 1])
def test_a_request_that_failed_early_has_no_pack_span(recent, clock, begun):
    at = clock.now_ns
    row = request(1, at=at, took=5 * MS, waited=MS, outcome=Outcome.REJECTED)
    fields = dict(zip(REQUEST.names, row, strict=True))
    fields |= {"dispatched_ns": begun and at + 2 * MS, "completed_ns": at + 5 * MS}
    fold(recent, requests=[tuple(fields.values())])
    (unpacking,) = recent.failures()[0].spans
    assert unpacking.op == UNPACK
    assert unpacking.end_ns == (2 * MS if begun else 5 * MS)
    assert unpacking.outcome == (Outcome.OK if begun else Outcome.REJECTED)


# Recording --------------------------------------------------------------------------------


@virtual
async def test_a_recording_has_the_requests_that_end_during_it():
    recording = Recording(replica=3)
    pending = [[turn(1, 0, at=0)]]

    def fold() -> None:
        while pending:
            recording.notify(rows(SPAN, *pending.pop()), rows(REQUEST))

    recorded = asyncio.ensure_future(recording.record(2.0, fold))
    await asyncio.sleep(1.0)
    assert pending == [], "what happened before is not recorded"
    recording.notify(rows(SPAN, turn(2, 0, at=0)), rows(REQUEST, request(2, at=0, took=5)))
    pending.append([turn(3, 0, at=0)])
    result = read_recording(await recorded)
    recording.notify(rows(SPAN, turn(4, 0, at=0)), rows(REQUEST))
    assert (result.replica, result.is_cut) == (3, False)
    assert result.spans["data_id"].tolist() == [2, 3]
    assert result.requests["data_id"].tolist() == [2]


@virtual
async def test_recordings_are_independent_and_removed_at_their_end():
    recording = Recording()
    long = asyncio.ensure_future(recording.record(3.0, lambda: None))
    given_up = asyncio.ensure_future(recording.record(3.0, lambda: None))
    await asyncio.sleep(1.0)
    given_up.cancel()
    short = asyncio.ensure_future(recording.record(1.0, lambda: None))
    for number in range(3):
        recording.notify(rows(SPAN, turn(number, 0, at=0)), rows(REQUEST))
        await asyncio.sleep(0.7)
    counts = [len(read_recording(await item).spans) for item in (long, short)]
    assert counts == [3, 1]
    assert recording._running == []


@virtual
async def test_a_recording_ends_early_when_the_server_stops():
    recording = Recording()
    first = asyncio.ensure_future(recording.record(30.0, lambda: None))
    await asyncio.sleep(1)
    recording.notify(rows(SPAN, turn(1, 0, at=0)), rows(REQUEST))
    recording.end()
    begun = asyncio.get_running_loop().time()
    result = read_recording(await first)
    assert result.spans["data_id"].tolist() == [1]
    await recording.record(30.0, lambda: None)  # one that is begun too late
    assert asyncio.get_running_loop().time() == begun


@pytest.mark.parametrize("copies", [1, 4])
@virtual
async def test_a_recording_is_cut_where_no_viewer_could_show_more(copies):
    """However many copies of a server there are: they come in one file."""
    recording = Recording(replicas=copies)
    recorded = asyncio.ensure_future(recording.record(1.0, lambda: None))
    await asyncio.sleep(0.5)
    for _ in range(3):
        recording.notify(np.zeros(MAX_RECORDED // 2, SPAN), rows(REQUEST))
    result = read_recording(await recorded)
    assert (len(result.spans), result.is_cut) == (MAX_RECORDED // copies, True)


@given(st.integers(0, 2**40), st.booleans(), st.binary(max_size=3), st.binary(max_size=3))
def test_a_recording_can_be_read_back(copy, is_cut, turns, requests):
    async def main() -> Recorded:
        recording = Recording(copy)
        recorded = asyncio.ensure_future(recording.record(1.0, lambda: None))
        await asyncio.sleep(0.5)
        size = MAX_RECORDED + 1 if is_cut else len(turns)
        recording.notify(np.ones(size, SPAN), np.ones(len(requests), REQUEST))
        return read_recording(await recorded)

    result = run_virtual(main())
    assert (result.replica, result.is_cut, len(result.requests)) == (copy, is_cut, len(requests))
    assert (result.spans == np.ones(len(result.spans), SPAN)).all()
