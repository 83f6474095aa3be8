"""Inputs of which some stream, joined part by part."""

from __future__ import annotations

from pipeline.engine.conditions import Absent
from pipeline.engine.streams.flow import ENDED, Part
from pipeline.engine.streams.inlet import GatherInlet, Inlet
from pipeline.errors import InputError

GONE = Absent(("fork",))


def test_a_part_waits_for_those_of_its_number():
    inlet = Inlet(("a", "b"), ["a", "b"])
    inlet.take("a", Part(0, "a0"))
    inlet.take("a", Part(1, "a1"))
    assert inlet.next() is None
    inlet.take("b", Part(0, "b0"))
    assert inlet.next() == {"a": "a0", "b": "b0"}
    assert inlet.next() is None


def test_what_does_not_stream_is_repeated_as_a_dict_of_ones_own():
    inlet = Inlet(("once", "a"), ["a"])
    inlet.take("a", Part(0, {"x": 0}))
    assert inlet.next() is None
    inlet.take("once", {"y": 1})
    first = inlet.next()
    first["once"]["y"] = 2
    inlet.take("a", Part(1, {"x": 1}))
    assert list(inlet.next().items()) == [("once", {"y": 1}), ("a", {"x": 1})]


def test_the_end_comes_when_all_have_ended():
    inlet = Inlet(("a", "b"), ["a", "b"])
    inlet.take("a", ENDED)
    assert inlet.next() is None
    inlet.take("b", ENDED)
    assert inlet.next() is ENDED


def test_an_error_comes_behind_the_parts_before_it():
    inlet, error = Inlet(("a",), ["a"]), InputError("no")
    inlet.take("a", Part(0, "a0"))
    inlet.take("a", error)
    assert inlet.next() == {"a": "a0"}
    assert inlet.next() is error


def test_an_error_of_what_does_not_stream_comes_at_once():
    inlet, error = Inlet(("once", "a"), ["a"]), InputError("no")
    inlet.take("once", error)
    assert inlet.next() is error


def test_an_absent_part_is_missing_and_if_all_are_nothing_is_read():
    inlet = Inlet(("once", "a", "b"), ["a", "b"])
    inlet.take("once", {"x": 1})
    for number, (a, b) in enumerate([("a0", GONE), (GONE, GONE)]):
        inlet.take("a", Part(number, a))
        inlet.take("b", Part(number, b))
    assert inlet.next() == {"once": {"x": 1}, "a": "a0"}
    assert [type(value) for value in inlet.next().values()] == [Absent]


def test_without_its_stream_a_join_has_one_part():
    inlet = Inlet(("once", "a"), ["a"])
    inlet.take("a", GONE)
    inlet.take("once", {"x": 1})
    assert inlet.next() == {"once": {"x": 1}}
    inlet.number += 1
    assert inlet.next() is ENDED
    assert not inlet.has_streams


def test_who_gathers_gets_lists_when_all_have_ended():
    inlet = GatherInlet(("a", "once", "b"), ["a", "b"])
    for number, payload in enumerate(("a0", GONE, "a2")):
        inlet.take("a", Part(number, payload))
    inlet.take("a", ENDED)
    inlet.take("once", {"x": 1})
    assert inlet.next() is None
    inlet.take("b", ENDED)
    assert inlet.next() == {"a": ["a0", "a2"], "once": {"x": 1}, "b": []}


def test_who_gathers_learns_of_an_error_at_once():
    inlet, error = GatherInlet(("a", "b"), ["a", "b"]), InputError("no")
    inlet.take("a", Part(0, "a0"))
    inlet.take("a", error)
    assert inlet.next() is error
