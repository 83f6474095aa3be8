"""What a generator's yield has for each request of its batch."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline import Answer
from pipeline.engine.run.call import Call
from pipeline.engine.streams.pull import Piece, Pull
from pipeline.errors import PayloadTypeError


def waits(awaitable, name):
    raise AssertionError("nothing is asynchronous here")


def pull(*rows):
    """A batch of requests that brought so many rows each."""
    return Pull(iter(()), Call({}, [*range(len(rows))], [list(rows)]), waits, is_batched=True)


def alone():
    return Pull(iter(()), Call({}, [0]), waits, is_batched=True)


def parts(pieces):
    return {piece.item: piece.data for piece in pieces if piece.has_part}


def test_each_request_gets_its_rows():
    found = pull(1, 2).pieces({"x": np.array([1, 2, 3])})
    assert [piece.data["x"].tolist() for piece in found] == [[1], [2, 3]]
    assert not any(piece.is_last for piece in found)


def test_none_ends_a_request_which_has_no_row_then():
    batch = pull(1, 1, 1)
    found = batch.pieces({"x": ["a", None, "c"]})
    assert parts(found) == {0: {"x": ["a"]}, 2: {"x": ["c"]}}
    assert batch.items == [0, 2]
    assert parts(batch.pieces({"x": ["d", "e"]})) == {0: {"x": ["d"]}, 2: {"x": ["e"]}}


def test_done_ends_with_a_part_and_is_taken_out():
    batch = pull(1, 1)
    yielded = {"x": ["a", "b"], "done": np.array([True, False])}
    assert batch.pieces(yielded) == [Piece(0, {"x": ["a"]}, True), Piece(1, {"x": ["b"]})]
    assert batch.items == [1]
    assert "done" in yielded, "it is the user's"


def test_several_rows_are_done_when_all_are():
    batch = pull(2, 1)
    found = batch.pieces({"x": ["a", "b", "c"], "done": [True, False, True]})
    assert [piece.is_last for piece in found] == [False, True]
    found = batch.pieces({"x": ["a", "b"], "done": [True, True]})
    assert [piece.is_last for piece in found] == [True]
    assert batch.items == []


def test_a_lone_request_of_a_batching_op_ends_in_the_same_ways():
    assert alone().pieces({"x": ["a"], "done": [True]}) == [Piece(0, {"x": ["a"]}, True)]
    assert alone().pieces({"x": ["a"], "done": True}) == [Piece(0, {"x": ["a"]}, True)]
    (piece,) = alone().pieces({"x": [None]})
    assert not piece.has_part


def test_an_answer_of_a_batch_is_one_for_each():
    found = pull(1, 1).pieces(Answer({"x": ["a", "b"]}))
    assert [type(piece.data) for piece in found] == [Answer, Answer]
    assert [piece.data.answer for piece in found] == [{"x": ["a"]}, {"x": ["b"]}]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(PayloadTypeError, match="with 1 rows for a batch of 2 rows"):
        pull(1, 1).pieces({"x": ["a"]})
    with pytest.raises(PayloadTypeError, match="'done' with 1 rows for 2 rows"):
        pull(1, 1).pieces({"x": ["a", "b"], "done": [True]})
