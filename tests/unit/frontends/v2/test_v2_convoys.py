"""Muster: who waits for others in a round of the loop, and who does not."""

from __future__ import annotations

import asyncio
import weakref

import numpy as np
import pytest
from doubles import virtual, without_gc

from pipeline.data import NO_INFO, ChannelData, RequestInfo
from pipeline.engine.convoy import MemberLostError, MemberOutcomes
from pipeline.engine.request import RequestTarget, UnarySink
from pipeline.errors import ClosedError, InputError, OverloadedError, WorkerDiedError
from pipeline.frontends.v2.convoys import ConvoyCollector, ConvoyRequest, can_stack
from pipeline.proto.slices import SHORT_BYTES


class FakeConvoys:
    """What an engine says of convoys."""

    def __init__(self, rows):
        self.rows, self.is_idle, self.room = rows, False, 99

    def size(self, rows):
        return min(self.rows // rows, self.room)


class Request:
    def __init__(self, target, sink):
        self.target, self.sink, self.is_cancelled = target, sink, False

    @property
    def values(self):
        return self.target.payload["x"][:, 0].tolist()

    def cancel(self):
        self.is_cancelled = True

    def answer(self, payload=None, error=None):
        self.sink.end(ChannelData(1, payload=payload, error=error))


class Engine:
    """Takes requests down, or raises `refusal`."""

    def __init__(self, rows=8):
        self.executor = self
        self.convoys = FakeConvoys(rows)
        self.begun = []
        self.refusal = None

    def begin(self, raw, timeout_s, target, sink):
        if self.refusal is not None:
            raise self.refusal
        request = Request(target, sink)
        target.convoy and target.convoy.enter(request, iter(range(100, 200)), lambda data_id: None)
        self.begun.append(request)
        return request


class Sink(UnarySink):
    def __init__(self):
        self.answers = []

    def end(self, answer):
        self.answers.append(answer)


def routed(inputs, rows):
    return None, RequestTarget(None, inputs, rows=rows)


class CollectorSetup:
    def __init__(self, rows=8, samples=1):
        self.engine = Engine(rows)
        self.successor = None
        self.written = None
        self.collector = ConvoyCollector(
            self.engine,
            samples,
            routed,
            lambda inputs: self.successor,
            lambda stack, sinks: self.written and self.written(stack, sinks),
            lambda item: {"x": np.concatenate([inputs["x"] for inputs in item])},
        )

    def add(self, *values, info=NO_INFO):
        """Requests of one sample each; a value may be an array."""
        collected = []
        for value in values:
            array = value if isinstance(value, np.ndarray) else np.array([[value]], np.float32)
            collected.append(ConvoyRequest(Sink(), {"x": array}, len(array), info))
            self.collector.add(collected[-1])
        return collected

    def begun(self):
        return [request.values for request in self.engine.begun]


async def quiet_round():
    """Rounds of the loop, the last of which brings no request."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def answer_of(request):
    """What a request was answered with, once."""
    (answer,) = request.sink.answers
    return answer.error or answer.payload["y"].tolist()


@virtual
async def test_requests_of_one_round_share_a_convoy():
    world = CollectorSetup()
    one, two, three = world.add(1, 2, 3)
    assert world.begun() == []
    await asyncio.sleep(0)
    assert world.begun() == [[1, 2, 3]]
    world.engine.begun[0].answer({"y": np.array([[10], [20], [30]])})
    assert [answer_of(item) for item in (one, two, three)] == [[[10]], [[20]], [[30]]]


@virtual
async def test_consecutive_requests_share_a_convoy_after_an_empty_round():
    world = CollectorSetup()
    world.add(1, 2)
    await quiet_round()
    world.add(3)
    await asyncio.sleep(0)
    world.add(4, 5)
    await asyncio.sleep(0)
    assert world.begun() == [[1, 2]]
    await quiet_round()
    assert world.begun() == [[1, 2], [3, 4, 5]]


@virtual
async def test_a_convoy_is_bounded_by_rounds_and_members():
    world = CollectorSetup(rows=99)
    world.add(1, 2)
    await quiet_round()
    for value in range(7):
        world.add(value)
        await asyncio.sleep(0)
    assert world.begun()[1:] == [[0, 1, 2, 3, 4]]
    world = CollectorSetup(rows=2)
    world.add(1, 2)
    await quiet_round()
    world.add(3, 4)
    await asyncio.sleep(0)
    assert world.begun()[1:] == [[3, 4]]
    world = CollectorSetup(rows=99)
    world.add(1, 2)
    await quiet_round()
    world.add(*range(32))
    await asyncio.sleep(0)
    assert len(world.begun()[1]) == 32


@virtual
async def test_a_single_request_starts_as_a_plain_request():
    world = CollectorSetup()
    (only,) = world.add(1, info=RequestInfo(id="me"))
    await asyncio.sleep(0)
    (request,) = world.engine.begun
    assert (request.target.convoy, request.target.info.id) == (None, "me")
    request.answer({"y": np.array([[10]])})
    assert answer_of(only) == [[10]]


@virtual
async def test_too_many_requests_start_as_several_convoys():
    world = CollectorSetup(rows=4)
    world.add(1, 2, 3, 4, 5)
    await asyncio.sleep(0)
    assert world.begun() == [[1, 2, 3, 4], [5]]
    world = CollectorSetup(rows=4, samples=2)
    world.add(*[np.array([[number], [number]], np.float32) for number in range(3)])
    await asyncio.sleep(0)
    assert world.begun() == [[0, 0, 1, 1], [2, 2]]
    world = CollectorSetup(rows=64)
    large = np.zeros((1, SHORT_BYTES // 8), np.float32)
    world.add(large, large, large)
    await asyncio.sleep(0)
    assert list(map(len, world.begun())) == [2, 1]


@virtual
async def test_it_is_open_while_the_model_is_busy_and_has_room():
    world = CollectorSetup()
    world.engine.convoys.is_idle = True
    assert not world.collector.is_open
    world.add(1)
    assert world.collector.is_open
    world.engine.convoys.room = 1
    world.add(2, 3)
    await asyncio.sleep(0)
    assert world.begun() == [[1], [2], [3]]  # none of them before another one
    world.engine.convoys.is_idle = False
    assert not world.collector.is_open
    world.engine.convoys.room = 2
    assert world.collector.is_open


@virtual
async def test_a_request_for_an_idle_model_waits_only_after_several_at_once():
    world = CollectorSetup()
    world.engine.convoys.is_idle = True
    for requests, is_open in ((1, False), (2, True), (1, False)):
        world.add(*range(requests))
        await quiet_round()
        assert world.collector.is_open == is_open


@virtual
async def test_a_request_cancelled_before_its_start_never_starts():
    world = CollectorSetup()
    first, second, third = world.add(1, 2, 3)
    first.cancel()
    await asyncio.sleep(0)
    assert world.begun() == [[2, 3]]
    (request,) = world.engine.begun
    second.cancel()
    second.cancel()
    assert request.target.convoy.left == {0}
    assert not request.is_cancelled
    request.answer(MemberOutcomes([None, {"y": np.array([[30]])}]))
    assert (first.sink.answers, second.sink.answers, answer_of(third)) == ([], [], [[30]])


@virtual
async def test_the_engine_is_notified_when_all_members_have_left():
    world = CollectorSetup()
    for item in world.add(1, 2):
        await quiet_round()
        item.cancel()
    assert world.engine.begun[0].is_cancelled
    (alone,) = world.add(3)
    await quiet_round()
    alone.cancel()
    assert world.engine.begun[1].is_cancelled


@virtual
async def test_each_gets_its_error():
    world = CollectorSetup()
    one, two = world.add(1, 2)
    await quiet_round()
    refused = InputError("no")
    world.engine.begun[0].answer(MemberOutcomes([refused, {"y": np.array([[20]])}]))
    assert (answer_of(one), answer_of(two)) == (refused, [[20]])
    both = world.add(1, 2)
    await quiet_round()
    world.engine.begun[1].answer(error=refused)
    assert [answer_of(item) for item in both] == [refused, refused]


@virtual
async def test_members_of_a_dead_worker_start_one_by_one():
    world = CollectorSetup()
    _, second, third = world.add(1, 2, 3)
    await asyncio.sleep(0)
    second.cancel()
    world.engine.begun[0].answer(error=WorkerDiedError("it died"))
    assert world.begun()[1:] == [[1], [3]]
    world.engine.begun[2].answer({"y": np.array([[30]])})
    assert answer_of(third) == [[30]]
    third.cancel()
    assert not world.engine.begun[2].is_cancelled


@virtual
async def test_only_the_member_that_ran_in_the_dead_worker_fails():
    world = CollectorSetup()
    first, second, third = world.add(1, 2, 3)
    await asyncio.sleep(0)
    died = WorkerDiedError("it died")
    world.engine.begun[0].answer(error=MemberLostError(1, died))
    assert world.begun()[1:] == [[1], [3]]
    assert answer_of(second) is died
    assert first.sink.answers == third.sink.answers == []


@virtual
async def test_answers_written_together_are_passed_unchanged():
    world = CollectorSetup()
    requests = world.add(1, 2)
    world.written = lambda stack, sinks: [*zip(stack["y"].tolist(), sinks, strict=True)]
    await asyncio.sleep(0)
    world.engine.begun[0].answer({"y": np.array([[10], [20]])})
    assert [request.sink.answers for request in requests] == [
        [([10], requests[0].sink)],
        [([20], requests[1].sink)],
    ]


@pytest.mark.parametrize("count", [1, 2])
@virtual
async def test_a_refusal_is_the_answer(count):
    world = CollectorSetup()
    world.engine.refusal = OverloadedError("too many", 3)
    requests = world.add(*range(count))
    await asyncio.sleep(0)
    assert [answer_of(request).retry_after_s for request in requests] == [3] * count


@pytest.mark.parametrize("count", [1, 2])
@virtual
async def test_a_bug_while_requests_are_joined_is_their_answer(count, caplog):
    world = CollectorSetup()
    world.engine.refusal = TypeError("a bug")
    requests = world.add(*range(count))
    await asyncio.sleep(0)
    assert [str(answer_of(request)) for request in requests] == ["TypeError: a bug"] * count
    assert "requests could not be joined" in caplog.text
    world.engine.refusal = None
    (next_one,) = world.add(7)
    await quiet_round()
    world.engine.begun[0].answer({"y": np.array([[70]])})
    assert answer_of(next_one) == [[70]]


@virtual
async def test_requests_of_a_reloaded_model_reach_its_successor():
    world, other = CollectorSetup(), Engine()
    requests = world.add(1, 2)
    world.successor = other.begin, routed
    await asyncio.sleep(0)
    assert (world.begun(), [item.values for item in other.begun]) == ([], [[1], [2]])
    other.begun[1].answer({"y": np.array([[20]])})
    assert answer_of(requests[1]) == [[20]]


@virtual
async def test_a_bug_at_the_successor_is_not_the_answer_of_requests_that_it_runs():
    world, other = CollectorSetup(), Engine()

    def begin(*arguments):
        if other.begun:
            raise TypeError("a bug")
        return other.begin(*arguments)

    first, second = world.add(1, 2)
    world.successor = begin, routed
    await asyncio.sleep(0)
    assert str(answer_of(second)) == "TypeError: a bug"
    other.begun[0].answer({"y": np.array([[10]])})
    assert answer_of(first) == [[10]]


@virtual
async def test_an_answer_that_cannot_be_split_fails_each_member():
    world = CollectorSetup()
    requests = world.add(1, 2)
    await asyncio.sleep(0)
    world.engine.begun[0].answer("no dict")
    assert all(isinstance(answer_of(request), Exception) for request in requests)


@virtual
async def test_a_sink_that_raises_does_not_affect_others(caplog):
    world = CollectorSetup()
    one, two = world.add(1, 2)
    one.sink.end = lambda answer: 1 / 0
    await asyncio.sleep(0)
    world.engine.begun[0].answer(error=ClosedError("over"))
    assert str(answer_of(two)) == "over"


@virtual
async def test_a_finished_convoy_leaves_no_reference_cycles():
    world = CollectorSetup()
    with without_gc():
        for answered in ({"y": np.zeros((2, 1))}, {"y": np.zeros((1, 1))}):
            left = [weakref.ref(item.sink) for item in world.add(*range(len(answered["y"])))]
            await quiet_round()
            world.engine.begun.pop().answer(answered)
        assert [item() for item in left] == [None]
        left = [weakref.ref(item.sink) for item in world.add(1, 2)]
        await quiet_round()
        world.engine.begun.pop().answer({"y": np.zeros((2, 1))})
        assert [item() for item in left] == [None, None]


def test_arrays_of_texts_and_single_numbers_are_not_put_together():
    assert can_stack({"x": np.zeros((1, 2))}, 1)
    assert not can_stack({}, 1)
    assert not can_stack({"x": np.zeros(())}, 1)
    assert not can_stack({"x": np.zeros(2)}, 1)
    assert not can_stack({"x": np.array([[b"a"]], object)}, 1)
