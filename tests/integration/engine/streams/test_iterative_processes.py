"""`batching: iterative` in processes: a request's state is in the one that makes its steps."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from random import Random

import numpy as np
import pytest
from doubles import on_loop
from streaming import Event, Mark, Noted, PartsSink, serving

from pipeline import Op, RequestOp
from pipeline.engine.request import RequestState
from pipeline.engine.streams.run import SLICE_NS
from pipeline.workers.process.sent import SentRun
from pipeline.workers.process.slices import StreamedItem


class Steps(Op):
    """Counts from 0 to below "n"; at 2 a request does what its key "does" says.

    `sizes`: of the first steps. While `gate` is cleared, a step waits before it ends.
    """

    def __init__(self, name="Steps", **options):
        super().__init__(name, input_ops=[RequestOp()], **options)
        self.sizes, self.pids, self.gate, self.entered = Noted(), Noted(), Event(), Event()
        self.gate.set()

    def preprocess(self, input_dicts, *, context):
        (inputs,) = input_dicts.values()
        context.state["at"] = 0
        if inputs.get("does") == "refuse":
            raise ValueError("refused")
        return {"n": np.array([int(inputs["n"])]), "does": np.array([inputs.get("does", "")])}

    def process(self, feed_batch, *, context):
        (feed,) = feed_batch
        self.sizes.append(len(context))
        self.pids.append(os.getpid())
        self.entered.set()
        assert self.gate.wait(20)
        for does, each in zip(feed["does"], context, strict=True):
            if each.state["at"] == 2:
                if does == "raise":
                    raise ValueError("raised")
                if does == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if does == "hang":
                    Event().wait(60)
        for each in context:
            each.state["at"] += 1
        at = np.array([item.state["at"] for item in context])
        return {"at": at - 1, "done": at >= feed["n"]}

    def postprocess(self, input_dicts, fetch_dict):
        return {"text": f"{fetch_dict['at'][0]}"}


def config(**more):
    return {"op": {"Steps": {"batching": "iterative", "batch_size": 4, **more}}}


def texts(count):
    return [f"{at}" for at in range(count)]


async def entered(op):
    assert await asyncio.to_thread(op.entered.wait, 20)


@on_loop
async def test_parts_are_in_order_and_a_unary_answer_has_all():
    async with serving(Mark("m", [Steps()]), workers="process", **config()) as streams:
        sinks = [streams.begin(n=count) for count in (40, 1, 25)]
        for sink, count in zip(sinks, (40, 1, 25), strict=True):
            assert await sink.ended() is None
            assert sink.texts == [f"m{text}" for text in texts(count)]
        answer = await streams.combined(n=3)
        assert list(answer.value) == ["m0m1m2"]


@on_loop
async def test_others_join_while_steps_are_made_and_the_process_is_one():
    op = Steps()
    async with serving(op, workers="process", **config()) as streams:
        long = streams.begin(n=10**9)
        await entered(op)
        for count in (3, 20):
            sink = streams.begin(n=count)
            assert await sink.ended() is None
            assert sink.texts == texts(count)
        assert max(op.sizes) == 2
        assert len(set(op.pids)) == 1
        long.request.cancel()
        await streams.idle()
        assert streams.node("Steps").scheduler.under_way == 0


@on_loop
async def test_a_step_is_an_execution_as_in_threads():
    async with serving(Steps(), workers="process", **config()) as streams:
        await streams.begin(n=3).ended()
        await streams.idle()
        streams.journal.flush()
        rows = [row for row in streams.rows.spans if row["op"] == 0]
        assert len(rows) == 3
        assert all(row["process_end_ns"] >= row["preprocess_end_ns"] > 0 for row in rows)


@on_loop
async def test_a_slow_reader_skips_steps_and_a_cancelled_one_frees_its_place():
    one = config(batch_size=1)
    async with serving(Steps(), workers="process", dag={"stream_window": 2}, **one) as streams:
        slow = streams.begin(PartsSink(takes_at_once=False), n=10**9)
        assert await slow.until(2) == ["0", "1"]
        next_one = streams.begin(n=2)
        slow.take()
        assert await slow.until(3) == ["0", "1", "2"]
        slow.request.cancel()
        assert await next_one.ended() is None
        assert next_one.texts == ["0", "1"]


@pytest.mark.parametrize("does", ["raise", "refuse"])
@on_loop
async def test_the_error_of_one_does_not_end_the_others(does):
    async with serving(Steps(), workers="process", **config()) as streams:
        sinks = [streams.begin(n=4, does=item) for item in ("", does, "")]
        ends = [await sink.ended() for sink in sinks]
        assert [end is None for end in ends] == [True, False, True]
        assert does in ends[1].err_msg
        made = texts(2) if does == "raise" else []
        assert [sink.texts for sink in sinks] == [texts(4), made, texts(4)]


@on_loop
async def test_a_process_that_dies_ends_its_requests_and_others_continue():
    many = config(batch_size=1, concurrency=2)
    async with serving(Steps(), workers="process", **many) as streams:
        other = streams.begin(PartsSink(takes_at_once=False), n=40)
        await other.until(16)
        dies = streams.begin(n=9, does="die")
        waits = streams.begin(n=3)
        error = await dies.ended()
        assert "the worker process" in error.err_msg
        assert dies.texts == texts(2)
        assert await waits.ended() is None
        assert waits.texts == texts(3)
        other.takes_at_once = True
        other.take(16)
        assert await other.ended() is None
        assert other.texts == texts(40)
        again = streams.begin(n=2)
        assert await again.ended() is None


@on_loop
async def test_a_step_that_hangs_has_its_process_replaced():
    async with serving(Steps(), workers="process", **config(timeout=300)) as streams:
        hangs = streams.begin(n=9, does="hang")
        assert "exceeded retry count" in (await hangs.ended()).err_msg
        assert hangs.texts == texts(2)
        after = streams.begin(n=3)
        assert await after.ended() is None
        assert after.texts == texts(3)


@on_loop
async def test_random_requests_all_end_and_leave_nothing():
    random = Random(11)
    two = config(concurrency=2)
    async with serving(Steps(), workers="process", dag={"stream_window": 3}, **two) as streams:
        sinks = []
        for number in range(60):
            count, is_slow = random.randrange(1, 9), random.random() < 0.3
            does = "raise" if random.random() < 0.2 else ""
            sink = streams.begin(PartsSink(takes_at_once=not is_slow), n=count, does=does)
            sinks.append((sink, count, does))
            if random.random() < 0.2:
                random.choice(sinks)[0].request.cancel()
            if number % 8 == 0:
                await asyncio.sleep(0)
        for sink, count, does in sinks:
            if sink.request.generation == RequestState.OVER and sink.last == "nothing yet":
                continue  # cancelled: nothing more comes
            if not sink.takes_at_once:
                sink.takes_at_once = True
                sink.take(len(sink.answers))
            ends_badly = bool(does) and count > 2
            assert (await sink.ended() is not None) == ends_badly
            assert sink.texts == texts(2 if ends_badly else count)
        await streams.idle()
        node = streams.node("Steps")
        assert not node._runs
        assert node.scheduler.under_way == len(node.scheduler) == 0


class Counts(Steps):
    """Notes at each step how many requests its process has; ended ones count as well."""

    def __init__(self, name):
        super().__init__(name)
        self.there = Noted()

    def process(self, feed_batch, *, context):
        self.there.append(sum(type(item) is StreamedItem for item in gc.get_objects()))
        return super().process(feed_batch, context=context)


@on_loop
async def test_a_process_has_nothing_of_requests_that_have_ended():
    op = Counts("Steps")
    async with serving(op, workers="process", **config()) as streams:
        sinks = [streams.begin(n=5) for _ in range(3)]
        for sink in sinks:
            assert await sink.ended() is None
        await streams.begin(n=1).ended()
        await streams.idle()
        assert list(op.there)[-1] == 1
        sent = [item for item in gc.get_objects() if type(item) is SentRun]
        assert not any(item.joined for item in sent), "they have shared memory"


class Holds(Steps):
    """Its part behind the first one holds what cannot be sent, once a slice is over."""

    def postprocess(self, input_dicts, fetch_dict, *, context):
        at = int(fetch_dict["at"][0])
        if at == 1 and next(iter(input_dicts.values())).get("does") == "hold":
            time.sleep(2 * SLICE_NS / 1e9)
            return {"text": self.gate}
        return {"text": f"{at}"}


@on_loop
async def test_the_successor_of_an_unsendable_request_makes_each_step_once():
    async with serving(Holds(), workers="process", **config()) as streams:
        for _ in range(3):
            holds = streams.begin(n=9, does="hold")
            assert "Event" in (await holds.ended()).err_msg
            assert holds.texts == ["0"]
            after = streams.begin(n=5)
            assert await after.ended() is None
            assert after.texts == texts(5)
