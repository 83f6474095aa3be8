"""Inputs of which some stream, joined part by part."""

from __future__ import annotations

from pipeline.engine.run.payload import Absent
from pipeline.engine.streams.combine import StreamLimits
from pipeline.engine.streams.flow import ENDED, Part
from pipeline.engine.streams.inlet import GatherInlet, Inlet
from pipeline.errors import InputError

GONE = Absent(("fork",))
LIMITS = StreamLimits(100, 10_000)


def test_a_part_waits_for_the_other_parts_of_its_number():
    inlet = Inlet(("a", "b"), ["a", "b"])
    inlet.take("a", Part(0, "a0"))
    inlet.take("a", Part(1, "a1"))
    assert inlet.next() is None
    inlet.take("b", Part(0, "b0"))
    assert inlet.next() == {"a": "a0", "b": "b0"}
    assert inlet.next() is None


def test_an_input_without_stream_is_repeated_as_a_copy():
    inlet = Inlet(("once", "a"), ["a"])
    inlet.take("a", Part(0, {"x": 0}))
    assert inlet.next() is None
    inlet.take("once", {"y": 1})
    first = inlet.next()
    first["once"]["y"] = 2
    inlet.take("a", Part(1, {"x": 1}))
    assert list(inlet.next().items()) == [("once", {"y": 1}), ("a", {"x": 1})]


def test_the_end_follows_when_all_inputs_have_ended():
    inlet = Inlet(("a", "b"), ["a", "b"])
    inlet.take("a", ENDED)
    assert inlet.next() is None
    inlet.take("b", ENDED)
    assert inlet.next() is ENDED


def test_an_error_follows_the_parts_before_it():
    inlet, error = Inlet(("a",), ["a"]), InputError("no")
    inlet.take("a", Part(0, "a0"))
    inlet.take("a", error)
    assert inlet.next() == {"a": "a0"}
    assert inlet.next() is error


def test_an_error_of_an_input_without_stream_is_immediate():
    inlet, error = Inlet(("once", "a"), ["a"]), InputError("no")
    inlet.take("once", error)
    assert inlet.next() is error


def test_an_absent_part_is_omitted_and_a_round_of_absent_parts_is_absent():
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


def test_a_gathering_inlet_returns_lists_when_all_inputs_have_ended():
    inlet = GatherInlet(("a", "once", "b"), ["a", "b"], LIMITS, "all")
    for number, payload in enumerate(("a0", GONE, "a2")):
        inlet.take("a", Part(number, payload))
    inlet.take("a", ENDED)
    inlet.take("once", {"x": 1})
    assert inlet.next() is None
    inlet.take("b", ENDED)
    assert inlet.next() == {"a": ["a0", "a2"], "once": {"x": 1}, "b": []}


def test_a_gathering_inlet_returns_an_error_at_once():
    inlet, error = GatherInlet(("a", "b"), ["a", "b"], LIMITS, "all"), InputError("no")
    inlet.take("a", Part(0, "a0"))
    inlet.take("a", error)
    assert inlet.next() is error


def test_a_gathering_inlet_has_limits_of_parts_and_bytes():
    inlet = GatherInlet(("a", "b"), ["a", "b"], StreamLimits(2, 10_000), "all")
    inlet.take("a", Part(0, {"x": 1}))
    inlet.take("b", Part(0, GONE))  # weighs nothing
    inlet.take("b", Part(1, {"x": 1}))
    assert inlet.next() is None
    inlet.take("a", Part(1, {"x": 1}))
    assert "Op 'all' gathers" in str(inlet.next())
    assert "more than dag.max_parts (2)" in str(inlet.next())
    heavy = GatherInlet(("a",), ["a"], StreamLimits(2, 10_000), "all")
    heavy.take("a", Part(0, {"x": b"." * 10_000}))
    assert "larger than max_message_bytes (10000 bytes)" in str(heavy.next())


def test_a_lap_begins_without_the_parts_of_the_lap_before_it():
    for kind, limits in ((Inlet, ()), (GatherInlet, (StreamLimits(2, 10_000), "op"))):
        inlet = kind(("a", "b", "outside"), ["a", "b"], *limits)
        inlet.take("outside", {"x": 1})
        for message in (Part(0, {"y": 0}), Part(1, {"y": 1}), ENDED):
            inlet.take("a", message)
        inlet.take("b", GONE)
        inlet.begin_lap({"a", "b"})
        for name in ("a", "b"):
            inlet.take(name, Part(0, {"y": 2}))
            inlet.take(name, ENDED)
        part = {"y": 2} if kind is Inlet else [{"y": 2}]
        assert inlet.next() == {"a": part, "b": part, "outside": {"x": 1}}


def test_an_error_from_outside_a_loop_is_reported_again():
    inlet, error = Inlet(("a", "outside"), ["a"]), InputError("no")
    inlet.take("outside", error)
    inlet.has_failed = True
    inlet.begin_lap({"a"})
    assert inlet.next() is error
