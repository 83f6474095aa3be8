from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline.engine.op.channel import Channel, Item, first_error
from pipeline.engine.run.payload import Absent
from pipeline.errors import InputError, UserCodeError


def request(data_id=0):
    class Request(SimpleNamespace):
        __hash__ = object.__hash__

    return Request(data_id=data_id, log_id=0, generation=0, rows=1)


def item(asked, ready_at=0.0):
    return Item(asked, 0, asked.data_id, 0, {}, ready_at)


def test_a_join_waits_for_every_producer():
    channel = Channel(["a", "b", "c"])
    asked = request()
    assert channel.join(asked, "c", 3) is None
    assert channel.join(asked, "a", 1) is None
    inputs = channel.join(asked, "b", 2)
    assert list(inputs.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert channel.waiting_for_parts == 0


def test_requests_are_joined_by_themselves():
    channel = Channel(["a", "b"])
    one, two = request(1), request(2)
    channel.join(one, "a", "1a")
    channel.join(two, "b", "2b")
    assert channel.join(one, "b", "1b") == {"a": "1a", "b": "1b"}
    assert channel.waiting_for_parts == 1


def test_first_arrival_wins_and_later_parts_are_dropped():
    channel = Channel(["a", "b"], first_arrival=True)
    late, early = request(7), request(3)
    assert channel.join(late, "b", "7b") == {"b": "7b"}
    assert channel.join(early, "a", "3a") == {"a": "3a"}, "a lower id is not dropped"
    assert channel.join(late, "a", "7a") is None
    assert channel.join(early, "b", "3b") is None
    assert channel.waiting_for_parts == 0


def test_first_arrival_prefers_an_answer_to_an_error():
    channel = Channel(["a", "b"], first_arrival=True)
    asked = request()
    assert channel.join(asked, "a", UserCodeError("a broke")) is None
    assert channel.join(asked, "b", "fine") == {"b": "fine"}


def test_first_arrival_of_errors_alone_gives_the_first_producers():
    channel = Channel(["a", "b"], first_arrival=True)
    asked = request()
    channel.join(asked, "b", UserCodeError("b broke"))
    inputs = channel.join(asked, "a", InputError("a broke"))
    assert str(first_error(inputs)) == "a broke"


def test_the_first_error_is_the_first_producers():
    channel = Channel(["a", "b"])
    asked = request()
    channel.join(asked, "b", UserCodeError("b broke"))
    inputs = channel.join(asked, "a", UserCodeError("a broke"))
    assert str(first_error(inputs)) == "a broke"


@pytest.mark.parametrize("jumper_comes_first", [False, True])
def test_a_jumping_op_takes_a_producers_place_under_its_own_name(jumper_comes_first):
    channel = Channel(["a", "b"])
    asked, other = request(1), request(2)
    parts = [("a", 1, "jumper"), ("b", 2, None)]
    first, second = parts if jumper_comes_first else reversed(parts)
    assert channel.join(asked, *first) is None
    inputs = channel.join(asked, *second)
    assert list(inputs.items()) == [("jumper", 1), ("b", 2)]
    channel.join(other, "a", 3)
    assert channel.join(other, "b", 4) == {"a": 3, "b": 4}, "the name was that request's alone"


@pytest.mark.parametrize("producers", [["jumper", "over"], ["over", "jumper"]])
def test_a_jumping_op_that_is_read_itself_is_read_once(producers):
    """What it passed over, its own place among others, does not hide its answer."""
    channel, asked = Channel(producers), request()
    assert channel.join(asked, "over", 1, "jumper") is None
    assert channel.join(asked, "jumper", Absent(("jumper",))) == {"jumper": 1}


def test_a_jumping_op_may_be_the_first_arrival_or_the_only_producer():
    asked = request()
    assert Channel(["a", "b"], first_arrival=True).join(asked, "a", 1, "jumper") == {"jumper": 1}
    assert Channel(["a"]).join(asked, "a", 1, "jumper") == {"jumper": 1}


def test_a_join_has_the_parts_that_are_not_absent():
    channel, asked = Channel(["a", "b", "c"]), request()
    channel.join(asked, "a", Absent(("x",)))
    channel.join(asked, "b", 2)
    assert channel.join(asked, "c", 3) == {"b": 2, "c": 3}


def test_a_join_of_absent_parts_is_absent_and_names_their_ops():
    channel, asked = Channel(["a", "b"]), request()
    channel.join(asked, "b", Absent(("y",)))
    inputs = channel.join(asked, "a", Absent(("x",)))
    absent = first_error(inputs)
    assert isinstance(absent, Absent)
    assert absent.by == ("x", "y")


def test_an_absent_part_does_not_hide_an_error():
    error = UserCodeError("b broke")
    channel, asked = Channel(["a", "b"]), request()
    channel.join(asked, "a", Absent(("x",)))
    assert first_error(channel.join(asked, "b", error)) is error
    assert first_error({"a": 1, "b": 2}) is None


def test_an_absent_part_is_not_a_first_arrival():
    channel, asked = Channel(["a", "b"], first_arrival=True), request()
    assert channel.join(asked, "a", Absent(("x",))) is None
    assert channel.join(asked, "b", 2) == {"b": 2}


def test_a_channel_names_the_error_that_waits_for_other_parts():
    channel = Channel(["a", "b", "c"])
    asked, other = request(1), request(2)
    channel.join(asked, "c", UserCodeError("c broke"))
    channel.join(asked, "b", UserCodeError("b broke"))
    channel.join(other, "a", 1)
    assert str(channel.held_error(asked)) == "b broke"
    assert channel.held_error(other) is None


@pytest.mark.parametrize("first_arrival", [False, True])
def test_discarded_parts_are_forgotten(first_arrival):
    channel = Channel(["a", "b"], first_arrival)
    gone, stays = request(1), request(2)
    channel.join(gone, "a", 1)
    channel.join(stays, "a", 1)
    channel.discard_parts(gone)
    assert channel.waiting_for_parts == 1


def test_an_item_is_over_as_soon_as_its_request_moved_on():
    asked = request()
    made = item(asked)
    assert not made.is_over
    asked.generation = -1
    assert made.is_over
