"""What a generator's yield has for each request of its batch."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline import Answer
from pipeline.engine.run.call import Call
from pipeline.engine.streams.run import NO_PART, SLICE_NS, Pull, StreamRun
from pipeline.errors import PayloadTypeError


def waits(awaitable, name):
    raise AssertionError("nothing is asynchronous here")


def pull(*rows):
    """A batch of requests that brought so many rows each."""
    return Pull(iter(()), Call({}, [*range(len(rows))], [list(rows)]), waits, is_batched=True)


def alone():
    return Pull(iter(()), Call({}, [0]), waits, is_batched=True)


def parts(pieces):
    return {item: part for item, part, _ in pieces if part is not NO_PART}


def test_each_request_gets_its_rows():
    pieces = pull(1, 2).pieces({"x": np.array([1, 2, 3])})
    assert [part["x"].tolist() for _, part, _ in pieces] == [[1], [2, 3]]
    assert not any(is_last for *_, is_last in pieces)


def test_a_none_row_ends_its_request():
    batch = pull(1, 1, 1)
    pieces = batch.pieces({"x": ["a", None, "c"]})
    assert parts(pieces) == {0: {"x": ["a"]}, 2: {"x": ["c"]}}
    assert batch.items == [0, 2]
    assert parts(batch.pieces({"x": ["d", "e"]})) == {0: {"x": ["d"]}, 2: {"x": ["e"]}}


def test_done_ends_a_request_with_its_part():
    batch = pull(1, 1)
    yielded = {"x": ["a", "b"], "done": np.array([True, False])}
    assert batch.pieces(yielded) == [(0, {"x": ["a"]}, True), (1, {"x": ["b"]}, False)]
    assert batch.items == [1]
    assert "done" in yielded, "it is the user's"


def test_several_rows_are_done_when_all_are():
    batch = pull(2, 1)
    pieces = batch.pieces({"x": ["a", "b", "c"], "done": [True, False, True]})
    assert [is_last for *_, is_last in pieces] == [False, True]
    pieces = batch.pieces({"x": ["a", "b"], "done": [True, True]})
    assert [is_last for *_, is_last in pieces] == [True]
    assert batch.items == []


def test_a_single_request_of_a_batching_op_ends_by_the_same_means():
    assert alone().pieces({"x": ["a"], "done": [True]}) == [(0, {"x": ["a"]}, True)]
    assert alone().pieces({"x": ["a"], "done": True}) == [(0, {"x": ["a"]}, True)]
    assert alone().pieces({"x": [None]}) == [(0, NO_PART, True)]


def test_an_answer_of_a_batch_is_one_for_each():
    pieces = pull(1, 1).pieces(Answer({"x": ["a", "b"]}))
    assert [type(part) for _, part, _ in pieces] == [Answer, Answer]
    assert [part.answer for _, part, _ in pieces] == [{"x": ["a"]}, {"x": ["b"]}]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(PayloadTypeError, match="with 1 rows for a batch of 2 rows"):
        pull(1, 1).pieces({"x": ["a"]})
    with pytest.raises(PayloadTypeError, match="'done' with 1 rows, but 2 rows continue"):
        pull(1, 1).pieces({"x": ["a", "b"], "done": [True]})


def test_a_batch_that_ends_with_its_slice_is_closed_by_the_next_slice():
    closed = []

    def makes():
        try:
            yield {"x": ["a"], "done": [True]}
        finally:
            closed.append("by now")

    batch = Pull(makes(), Call({}, [0], [[1]]), waits, is_batched=True)
    run = StreamRun([SimpleNamespace(is_over=False)])
    run.pulls, run.groups, run.allowed, run.made, run.ended = [batch], [], [2], [0], [False]
    op = SimpleNamespace(timeout_s=None, notes=None, processed=dict, ended=lambda item, data: data)
    watch = SimpleNamespace(
        call_begins=lambda: None, call_ends=lambda: None, yielded=lambda run, entries: None
    )
    clock = map(SLICE_NS.__mul__, itertools.count(0, 2))
    run.run(op, watch, clock.__next__)
    assert run.ended == [True]
    assert (closed, run.is_finished, run.has_work) == ([], False, True)
    run.run(op, watch, clock.__next__)
    assert (closed, run.is_finished, run.has_work) == (["by now"], True, False)
