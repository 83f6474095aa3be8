"""Traces: what stands in them, and that viewers find slices nested and arrows whole."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from fake_service import (
    MS,
    FakeOp,
    never_ran,
    play,
    request,
    requests_of,
    turn,
    turns_of,
)
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import REQUEST, SPAN, Outcome
from pipeline.observe.analysis.chrome_trace import (
    depth,
    events,
    first_time_ns,
    split_batches,
    trace_json,
)

NAMES = ["words", "bow"]


def of_kind(found: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] in kinds]


def slices(found: list[dict[str, Any]]) -> list[tuple[str, Any, float, float, int]]:
    """(name, row, begin, end, depth) of all slices; fails where they are not nested."""
    is_open = defaultdict(list)
    last: dict[Any, float] = {}
    done = []
    for event in of_kind(found, "B", "E"):
        row = (event["pid"], event["tid"])
        assert event["ts"] >= last.get(row, event["ts"]), "time runs backwards in a row"
        last[row] = event["ts"]
        if event["ph"] == "B":
            is_open[row].append(event)
        else:
            begin = is_open[row].pop()
            assert event["name"] == begin["name"]
            done.append((begin["name"], row, begin["ts"], event["ts"], len(is_open[row])))
    assert not any(is_open.values())
    return done


def names_of(found: list[dict[str, Any]], kind: str) -> dict[Any, str]:
    return {
        (event["pid"], event["tid"]) if kind == "thread_name" else event["pid"]: event["args"][
            "name"
        ]
        for event in of_kind(found, "M")
        if event["name"] == kind
    }


def test_a_batch_is_a_slice_of_its_worker_with_its_stages_inside():
    rows = turns_of(turn(1, 7, worker=3), turn(1, 8, worker=3, ready_ns=MS // 2))
    result = events(rows, requests_of(), NAMES)
    assert names_of(result, "process_name") == {3: "Op bow"}
    assert names_of(result, "thread_name") == {(3, 4): "worker 3"}
    row = (3, 4)
    assert sorted(slices(result), key=lambda item: (item[4], item[2])) == [
        ("batch of 2", row, 2000.0, 5000.0, 0),
        ("preprocess", row, 2000.0, 3000.0, 1),
        ("process", row, 3000.0, 4000.0, 1),
        ("postprocess", row, 4000.0, 5000.0, 1),
    ]
    (batch,) = [event for event in of_kind(result, "B") if event["name"] == "batch of 2"]
    assert batch["args"] == {
        "requests": [7, 8], "batch": 1, "rows": 2, "longest_wait_us": 1500.0,
    }  # fmt: skip


def test_arrows_follow_a_request_through_the_ops_and_back():
    rows = turns_of(
        turn(0, 7, ready_ns=1 * MS, start_ns=2 * MS, end_ns=3 * MS),
        turn(1, 7, ready_ns=3 * MS, start_ns=4 * MS, end_ns=5 * MS),
    )
    result = events(rows, requests_of(request(7)), NAMES)
    arrows = of_kind(result, "s", "t", "f")
    assert {(arrow["id"], arrow["cat"], arrow["name"]) for arrow in arrows} == {
        (7, "request", "request")
    }
    assert sorted((arrow["ts"], arrow["ph"], arrow["pid"]) for arrow in arrows) == [
        (1000.0, "s", 1),
        (2000.0, "t", 2),
        (4000.0, "t", 3),
        (6000.0, "f", 1),
    ]
    assert all(arrow["bp"] == "e" for arrow in of_kind(result, "t", "f"))


def test_ops_of_one_trip_are_a_slice_of_their_request():
    first = {"preprocess_end_ns": 2 * MS, "process_end_ns": 2 * MS, "end_ns": 3 * MS}
    later = {"start_ns": 3 * MS, "preprocess_end_ns": 3 * MS}
    rows = turns_of(turn(0, 7, **first), turn(1, 7, **later), turn(0, 8, result_received_ns=9 * MS))
    result = events(rows, requests_of(request(7), request(8)), NAMES)
    in_rows = [(name, *rest) for name, (pid, _), *rest in slices(result) if pid == 1]
    assert ("in one trip: words, bow", 2000.0, 5000.0, 2) in in_rows
    assert sum(name.startswith("in one trip") for name, *_ in in_rows) == 1
    marks = {
        tuple(event["args"]["requests"]): event["args"].get("in_one_go")
        for event in of_kind(result, "B")
        if event["name"] == "batch of 1"
    }
    assert marks == {(7,): ["words", "bow"], (8,): None}


def test_parallel_trips_are_drawn_without_overlap():
    late = {"result_received_ns": 7 * MS}
    rows = turns_of(*(turn(op, 7) for op in (0, 1)), *(turn(op, 7, **late) for op in (2, 3)))
    result = events(rows, requests_of(request(7)), [*NAMES, "cnn", "join"])
    assert [name for name, *_ in slices(result) if "trip" in name] == ["in one trip: words, bow"]
    marks = [
        event.get("args", {}).get("in_one_go") for event in of_kind(result, "B") if event["pid"] > 1
    ]
    assert [mark for mark in marks if mark] == [["words", "bow"]] * 2 + [["cnn", "join"]] * 2


def test_an_arrow_follows_the_start_of_its_slice():
    result = events(turns_of(turn()), requests_of(request()), NAMES)
    behind = [
        (before["name"], event["ph"])
        for before, event in itertools.pairwise(result)
        if event["ph"] in "stf"
    ]
    assert behind == [("graph", "s"), ("pack", "f"), ("batch of 1", "t")]


def test_without_the_request_arrows_join_its_turns():
    alone = events(turns_of(turn(0)), requests_of(), NAMES)
    assert of_kind(alone, "s", "t", "f") == []
    both = events(turns_of(turn(0), turn(1, start_ns=4 * MS)), requests_of(), NAMES)
    assert [event["ph"] for event in of_kind(both, "s", "t", "f")] == ["s", "f"]


def test_a_request_without_turns_has_no_arrows():
    result = events(turns_of(), requests_of(request()), NAMES)
    assert of_kind(result, "s", "t", "f") == []
    assert [name for name, *_ in slices(result)] == ["wait", "unpack", "graph", "pack", "request 7"]


def test_requests_that_overlap_are_in_lanes():
    rows = requests_of(
        request(1, start_ns=1, end_ns=100),
        request(2, start_ns=50, end_ns=200),
        request(3, start_ns=100, end_ns=300),
    )
    result = events(turns_of(), rows, NAMES)
    lanes = {name: row[1] for name, row, *_ in slices(result) if name.startswith("request")}
    assert lanes == {"request 1": 1, "request 2": 2, "request 3": 1}


def test_batches_of_one_worker_that_overlap_are_drawn_apart():
    """Coroutines of one worker run at the same time."""
    rows = turns_of(turn(data_id=1, batch=1), turn(data_id=2, batch=2, start_ns=3 * MS))
    result = events(rows, requests_of(), NAMES)
    assert sorted(names_of(result, "thread_name").values()) == ["worker 0", "worker 0 (2)"]
    assert len({row for _, row, *_ in slices(result)}) == 2


def test_counters_show_waiting_and_admitted_requests():
    rows = turns_of(
        turn(data_id=1, batch=1, ready_ns=1000, start_ns=2000),
        turn(data_id=2, batch=2, ready_ns=1000, start_ns=5000),
        turn(data_id=3, batch=3, ready_ns=2000, start_ns=8000),
    )
    result = of_kind(events(rows, requests_of(request()), NAMES), "C")
    counts = {"channel": [], "requests": []}
    for event in result:
        ((_, count),) = event["args"].items()
        counts[event["name"]].append((event["ts"], count))
    assert counts["channel"] == [(1.0, 2), (2.0, 2), (5.0, 1), (8.0, 0)]
    assert counts["requests"] == [(750.0, 1), (7000.0, 0)]


def test_a_turn_that_never_ran_is_a_mark():
    (mark,) = of_kind(events(turns_of(never_ran(1, 9)), requests_of(), NAMES), "i")
    assert (mark["name"], mark["pid"], mark["ts"]) == ("request 9 never ran", 3, 3000.0)
    assert mark["args"] == {"outcome": "REJECTED"}


def test_a_failure_has_its_outcome_and_a_color():
    rows = turns_of(turn(data_id=1), turn(data_id=2, outcome=int(Outcome.BACKEND)))
    result = events(rows, requests_of(request(2, outcome=int(Outcome.BACKEND), code=6000)), NAMES)
    failed = {event["name"]: event["args"] for event in result if event.get("cname") == "terrible"}
    assert failed["batch of 2"]["outcome"] == "BACKEND"
    assert failed["request 2"] == {"outcome": "BACKEND", "err_no": 6000}


def test_replicas_of_a_server_are_separate_processes():
    rows, requests = turns_of(turn()), requests_of(request())
    first, second = (events(rows, requests, NAMES, copy) for copy in (0, 1))
    assert names_of(first, "process_name") == {1: "copy 0: requests", 2: "copy 0: Op words"}
    assert names_of(second, "process_name") == {4: "copy 1: requests", 5: "copy 1: Op words"}
    ids = [{event["id"] for event in found if "id" in event} for found in (first, second)]
    assert ids[0] != ids[1]


def test_times_start_at_the_given_zero():
    rows, requests = turns_of(turn()), requests_of(request())
    assert first_time_ns(rows, requests) == MS // 2
    assert first_time_ns(turns_of(), requests_of()) == 0
    result = events(rows, requests, NAMES, zero_ns=first_time_ns(rows, requests))
    assert min(event["ts"] for event in result if "ts" in event) == 0.0


def test_values_missing_in_the_predecessors_lines_are_omitted():
    unknown = {"data_id": -1, "rows": -1, "ready_ns": -1, "result_received_ns": -1, "outcome": 0}
    result = events(turns_of(turn(**unknown)), requests_of(), NAMES)
    assert [name for name, *_ in slices(result)] == [
        "preprocess",
        "process",
        "postprocess",
        "batch",
    ]
    assert of_kind(result, "C", "s", "t", "f", "i") == []


def test_the_file_is_a_json_list_with_an_event_a_line():
    result = events(turns_of(turn()), requests_of(request()), ["wörds </script>"])
    text = trace_json(result)
    assert json.loads(text) == result
    assert len(text.splitlines()) == len(result)
    assert json.loads(trace_json([])) == []


@pytest.mark.parametrize("count", [999, 1000, 1001, 3000])
def test_many_events_are_a_list_too(count):
    results = [{"ph": "i", "ts": number} for number in range(count)]
    text = trace_json(results)
    assert json.loads(text) == results
    assert len(text.splitlines()) == count


def test_a_service_has_a_row_for_each_worker_and_an_arrow_for_each_edge():
    ops = [FakeOp(0.1, 1.0, concurrency=2), FakeOp(0.2, 4.0, 0.5, batch_size=4)]
    turns, requests = play(ops, clients=9, count=50)
    result = events(turns, requests, NAMES)
    assert set(names_of(result, "thread_name").values()) >= {"worker 0", "worker 1", "lane 9"}
    assert len(of_kind(result, "s")) == len(of_kind(result, "f")) >= 50
    batches = [name for name, *_ in slices(result) if name.startswith("batch")]
    assert len(batches) == len(split_batches(turns))


times = st.integers(-1, 40)


@given(
    st.lists(st.tuples(*[st.integers(0, 1)] * 2, st.integers(-1, 3), *[times] * 9), max_size=20),
    st.lists(st.tuples(st.integers(-1, 9), *[st.just(-1)] * 4, *[times] * 8), max_size=20),
)
def test_slices_nest_and_arrows_are_complete_for_any_rows(turns, requests):
    turns = [(*row[:5], abs(row[5]) % 5, *row[6:]) for row in turns]
    result = events(np.array(turns, SPAN), np.array(requests, REQUEST), NAMES)
    slices(result)
    ends = defaultdict(list)
    for event in of_kind(result, "s", "t", "f"):
        ends[event["id"]].append((event["ts"], event["ph"]))
    for points in ends.values():
        assert sorted(kind for _, kind in points if kind != "t") == ["f", "s"]
        assert min(points)[0] == dict(map(reversed, points))["s"]
    json.loads(trace_json(result))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30))
def test_the_depth_counts_started_and_not_ended_intervals(stays):
    pairs = np.array([(start, start + length) for start, length in stays], np.int64).reshape(-1, 2)
    times, counts = depth(pairs[:, 0], pairs[:, 1])
    expected = [int(((pairs[:, 0] <= now) & (pairs[:, 1] > now)).sum()) for now in times]
    assert counts.tolist() == expected
    assert len(set(times.tolist())) == len(times)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], []),
        ([(0, 0, 1), (0, 0, 1), (0, 1, 1)], [(0, 2), (2, 3)]),
        ([(0, 0, 1), (0, 0, 2), (1, 0, 2)], [(0, 1), (1, 2), (2, 3)]),
        ([(0, 0, -1), (0, 0, -1)], [(0, 1), (1, 2)]),
    ],
)
def test_batches_are_neighbours_with_the_same_op_worker_and_number(fields, expected):
    rows = turns_of(*(turn(op, worker=worker, batch=batch) for op, worker, batch in fields))
    assert split_batches(rows) == expected
