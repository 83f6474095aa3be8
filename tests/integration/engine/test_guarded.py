"""A user's scheduler that raises: its requests get an error, others continue."""

from __future__ import annotations

import asyncio

import pytest
from doubles import on_loop
from scheduling import item, request
from streaming import Mark, OneSink, serving

from pipeline import RequestOp
from pipeline.config import registry
from pipeline.engine.schedulers.base import Batch, ReadyQueue
from pipeline.engine.schedulers.guarded import GuardedScheduler
from pipeline.errors import InputError


class Fails:
    """One by one; what `raises` names raises the first time."""

    raises = ""

    def __init__(self, config, options):
        self._queue = ReadyQueue()

    def _may_fail(self, name):
        if Fails.raises == name:
            Fails.raises = ""
            raise ValueError(f"{name} is wrong")

    def __len__(self):
        return len(self._queue)

    def add(self, item, now):
        self._may_fail("add")
        self._queue.add(item, now)

    def next(self, load, now):
        self._may_fail("next")
        return Batch(self._queue.take(1, load, now)) if len(self._queue) else None

    def done(self, batch, now):
        self._may_fail("done")

    def drop(self, request):
        self._may_fail("drop")
        return self._queue.drop(request)

    def clear(self):
        return self._queue.clear()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("schedulers", "fails", Fails)
    Fails.raises = ""


async def answered(sink):
    return await asyncio.wait_for(sink, 20)


CONFIG = {"op": {"m": {"batching": "fails"}}}


@pytest.mark.parametrize("method", ["add", "next"])
@on_loop
async def test_ready_requests_get_the_exception_and_later_ones_are_answered(method, caplog):
    async with serving(Mark("m", [RequestOp()]), **CONFIG) as streams:
        assert list((await answered(streams.begin(OneSink(), text="x"))).value) == ["mx"]
        Fails.raises = method
        sinks = [streams.begin(OneSink(), text="x") for _ in range(3)]
        for sink in sinks:
            answer = await answered(sink)
            assert f"[m] the scheduler failed: Fails.{method} raised" in answer.err_msg
            assert f"{method} is wrong" in answer.err_msg
        assert f"{method} is wrong" in caplog.text
        assert list((await answered(streams.begin(OneSink(), text="y"))).value) == ["my"]
        assert streams.node("m").load.running == 0


@on_loop
async def test_a_result_is_answered_although_done_raises(caplog):
    async with serving(Mark("m", [RequestOp()]), **CONFIG) as streams:
        Fails.raises = "done"
        assert list((await answered(streams.begin(OneSink(), text="x"))).value) == ["mx"]
        assert "done is wrong" in caplog.text
        assert list((await answered(streams.begin(OneSink(), text="y"))).value) == ["my"]


def test_a_refused_item_is_not_queued():
    class Refuses(Fails):
        def add(self, item, now):
            return InputError("none today")

    scheduler = GuardedScheduler(Refuses(None, None), "a")
    refusal = scheduler.add(item(request()), 0.0)
    assert isinstance(refusal, InputError)
    assert len(scheduler) == 0
    assert scheduler.clear() == []
