"""`batching: iterative` on real threads: step by step, requests join and leave in between."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from random import Random

import numpy as np
import pytest
from doubles import on_loop, wait_until
from streaming import Mark, OneSink, PartsSink, serving

from pipeline import Answer, Op, RequestOp
from pipeline.config import registry
from pipeline.config.batching import SchedulerTraits
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.iterative import IterativeScheduler
from pipeline.errors import ErrorCode, GraphError


class Steps(Op):
    """Counts from 0 to below "n", for each request; keeps where it stands in its state.

    `sizes`: requests in each step; `steps`: of each request, by data_id. While `gate` is cleared
    the next step waits before it ends.
    """

    def init_op(self):
        self.sizes, self.workers_of = [], defaultdict(set)
        self.seen, self.prepared = {}, []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        SEEN[self.name] = self

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        self.prepared.append(data_id)
        bad = inputs.get("bad", "")
        return {"n": np.array([[int(inputs["n"])]]), "bad": np.array([[bad]])}

    def process(self, feed_batch, log_id, context):
        feed = feed_batch[0]
        self.sizes.append(len(context))
        self.entered.set()
        assert self.gate.wait(20)
        texts, done = [], []
        for row, each in enumerate(context):
            self.workers_of[each.data_id].add(threading.get_ident())
            if feed["bad"][row][0] and each.state.get("at", 0) == 2:
                raise ValueError(f"bad row {feed['bad'][row][0]}")
        for row, each in enumerate(context):
            at = each.state.get("at", 0)
            each.state["at"] = at + 1
            self.seen[each.data_id] = each.state
            texts.append(f"{at}")
            done.append(at + 1 >= feed["n"][row][0])
        return {"text": texts, "done": done}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"text": fetch_data["text"][0]}


SEEN: dict[str, Steps] = {}
BATCHED = {"op": {"Steps": {"batching": "iterative", "batch_size": 4}}}


def steps(**options):
    return Steps("Steps", input_ops=[RequestOp()], **options)


@pytest.fixture(autouse=True)
def forget():
    yield
    for op in SEEN.values():
        op.gate.set()
    SEEN.clear()


async def entered(op):
    assert await asyncio.to_thread(op.entered.wait, 20)
    op.entered.clear()


async def joined(streams, count):
    """Wait until so many requests have a seat, and are in the next step."""
    seated = streams.node("Steps").scheduler
    await asyncio.to_thread(wait_until, lambda: seated.under_way >= count)


@on_loop
async def test_each_step_makes_a_part_and_preprocess_runs_once():
    async with serving(steps(), **BATCHED) as streams:
        sink = streams.begin(n=3)
        assert await sink.ended() is None
        assert sink.texts == ["0", "1", "2"]
        op = SEEN["Steps"]
        assert len(op.prepared) == 1
        assert op.sizes == [1, 1, 1]
        assert streams.engine.executor.is_decoupled()
        assert not streams.node("Steps")._runs


@on_loop
async def test_others_join_between_steps_and_finished_ones_leave():
    async with serving(steps(), **BATCHED) as streams:
        first = streams.begin(n=1)
        await first.ended()
        op = SEEN["Steps"]
        op.sizes.clear()
        op.entered.clear()
        op.gate.clear()
        long = streams.begin(n=5)
        await entered(op)
        short = [streams.begin(n=2), streams.begin(n=1)]
        await joined(streams, 3)
        op.gate.set()
        for sink in (long, *short):
            assert await sink.ended() is None
        assert op.sizes == [1, 3, 2, 1, 1]
        assert [item.texts for item in (long, *short)] == [list("01234"), list("01"), list("0")]


class Seats(IterativeScheduler):
    """A scheduler that steps, of a script."""

    traits = SchedulerTraits(steps=True)


@on_loop
async def test_a_scheduler_that_a_script_registers_may_step_as_ours_does(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("schedulers", "seats", Seats)
    async with serving(steps(), op={"Steps": {"batching": "seats", "batch_size": 2}}) as streams:
        sinks = [streams.begin(n=3) for _ in range(5)]
        for sink in sinks:
            assert await sink.ended() is None
            assert sink.texts == ["0", "1", "2"]
        assert max(SEEN["Steps"].sizes) <= 2


@on_loop
async def test_at_most_batch_size_requests_are_in_a_step():
    async with serving(steps(), **BATCHED) as streams:
        sinks = [streams.begin(n=4) for _ in range(11)]
        for sink in sinks:
            assert await sink.ended() is None
            assert sink.texts == list("0123")
        assert max(SEEN["Steps"].sizes) <= 4


@on_loop
async def test_a_request_without_room_skips_steps_and_retains_its_place():
    config = {**BATCHED, "dag": {"stream_window": 2}}
    async with serving(steps(), **config) as streams:
        slow = streams.begin(PartsSink(takes_at_once=False), n=5)
        quick = streams.begin(n=6)
        assert await quick.ended() is None
        assert slow.texts == ["0", "1"]
        slow.take()
        assert await slow.until(3) == ["0", "1", "2"]
        slow.take(2)
        await slow.until(5)
        assert await slow.ended() is None
        assert slow.texts == list("01234")


@on_loop
async def test_a_cancelled_request_leaves_and_its_state_is_released():
    config = {**BATCHED, "dag": {"stream_window": 2}}
    async with serving(steps(), **config) as streams:
        gone = streams.begin(PartsSink(takes_at_once=False), n=10**9)
        await gone.until(2)
        node = streams.node("Steps")
        assert len(node._runs) == 1
        gone.request.cancel()
        assert not node._runs
        await streams.idle()
        assert not node.scheduler.under_way
        sink = streams.begin(n=3)
        assert await sink.ended() is None


@on_loop
async def test_a_request_cancelled_during_a_step_is_not_in_the_next_one():
    async with serving(steps(), **BATCHED) as streams:
        await streams.begin(n=1).ended()
        op = SEEN["Steps"]
        op.sizes.clear()
        op.entered.clear()
        op.gate.clear()
        gone = streams.begin(n=10**9)
        await entered(op)
        stays = streams.begin(n=2)
        await joined(streams, 2)
        gone.request.cancel()
        op.gate.set()
        assert await stays.ended() is None
        assert op.sizes == [1, 1, 1]
        assert gone.texts == []


@on_loop
async def test_the_error_of_one_request_does_not_end_the_others():
    async with serving(steps(), **BATCHED) as streams:
        sinks = [streams.begin(n=4, bad=bad) for bad in ("", "x", "")]
        ends = [await sink.ended() for sink in sinks]
        assert ends[0] is None
        assert ends[2] is None
        assert "bad row x" in ends[1].err_msg
        assert [sink.texts for sink in sinks] == [list("0123"), list("01"), list("0123")]


class Spoils(Steps):
    """Raises when it has changed the states already."""

    def process(self, feed_batch, log_id, context):
        result = super().process(feed_batch, log_id, context)
        if len(context) > 1:
            raise ValueError("too late")
        return result


@on_loop
async def test_a_step_that_failed_and_changed_a_state_is_not_made_again():
    async with serving(Spoils("Steps", input_ops=[RequestOp()]), **BATCHED) as streams:
        await streams.begin(n=1).ended()
        op = SEEN["Steps"]
        op.entered.clear()
        op.gate.clear()
        first = streams.begin(n=3)
        await entered(op)
        second = streams.begin(n=3)
        await joined(streams, 2)
        op.gate.set()
        for sink in (first, second):
            assert "too late" in (await sink.ended()).err_msg
        assert (first.texts, second.texts) == (["0"], [])
        assert await streams.begin(n=1).ended() is None


class Nones(Steps):
    """Ends a request by None in the place of its row."""

    def process(self, feed_batch, log_id, context):
        result = super().process(feed_batch, log_id, context)
        limits = feed_batch[0]["n"][:, 0]
        texts = [
            None if int(text) >= limit else text
            for text, limit in zip(result["text"], limits, strict=True)
        ]
        return {"text": texts}


@on_loop
async def test_none_ends_a_request_without_a_part():
    async with serving(Nones("Steps", input_ops=[RequestOp()]), **BATCHED) as streams:
        sinks = [streams.begin(n=count) for count in (0, 2, 3)]
        for sink, count in zip(sinks, (0, 2, 3), strict=True):
            assert await sink.ended() is None
            assert len(sink.texts) == count


@on_loop
async def test_a_request_stays_with_its_worker():
    config = {"op": {"Steps": {**BATCHED["op"]["Steps"], "concurrency": 3}}}
    async with serving(steps(), **config) as streams:
        sinks = [streams.begin(n=30) for _ in range(9)]
        for sink in sinks:
            assert await sink.ended() is None
            assert len(sink.texts) == 30
        values = SEEN["Steps"].workers_of.values()
        assert all(len(threads) == 1 for threads in values)
        assert len(set.union(*values)) == 3


class Hangs(Steps):
    def process(self, feed_batch, log_id, context):
        if feed_batch[0]["bad"][0][0] and context[0].state.get("at") == 1:
            HANG.wait()
        return super().process(feed_batch, log_id, context)


HANG = threading.Event()


@on_loop
async def test_a_hanging_step_ends_its_requests_and_others_continue():
    HANG.clear()
    config = {
        "dag": {"stream_window": 1},
        "op": {"Steps": {**BATCHED["op"]["Steps"], "timeout": 500}},
    }
    try:
        async with serving(Hangs("Steps", input_ops=[RequestOp()]), **config) as streams:
            other = streams.begin(PartsSink(takes_at_once=False), n=3)
            await other.until(1)  # it has no room: it sits out
            stuck = streams.begin(n=3, bad="x")
            error = await stuck.ended()
            assert (error.err_no and "timeout" in error.err_msg.lower()) or "retry" in error.err_msg
            assert stuck.texts == ["0"]
            other.takes_at_once = True
            other.take()
            assert await other.ended() is None
            assert other.texts == list("012")
            HANG.set()
    finally:
        HANG.set()


@pytest.mark.parametrize("most_stuck", [1, 0])
@on_loop
async def test_parts_from_before_a_hang_arrive(most_stuck, monkeypatch):
    monkeypatch.setattr("pipeline.workers.thread._MAX_STUCK", most_stuck)
    HANG.clear()
    config = {"op": {"Steps": {**BATCHED["op"]["Steps"], "timeout": 500}}}
    try:
        async with serving(Hangs("Steps", input_ops=[RequestOp()]), **config) as streams:
            node, op = streams.node("Steps"), SEEN["Steps"]
            inbox = node.workers._inbox
            op.gate.clear()
            short = streams.begin(n=1)
            await asyncio.to_thread(op.entered.wait, 20)
            inbox._is_scheduled = inbox._is_looking = True  # as if the loop were about to look
            stuck = streams.begin(n=3, bad="x")
            # It has to join before the step ends.
            await asyncio.to_thread(wait_until, lambda: len(node._at[0].taken) == 2)
            op.gate.set()
            assert await short.ended() is None
            assert (await stuck.ended()).err_no == ErrorCode.TIMEOUT
            assert (short.texts, stuck.texts) == (["0"], ["0"])
            HANG.set()
            await streams.idle()
    finally:
        HANG.set()


@on_loop
async def test_parts_pass_later_ops_and_are_combined_for_unary_requests():
    behind = Mark("m", input_ops=[steps()])
    async with serving(behind, **BATCHED) as streams:
        sink = streams.begin(n=3)
        await sink.ended()
        assert sink.texts == ["m0", "m1", "m2"]
        answer = await streams.combined(n=3)
        assert list(answer.value) == ["m0m1m2"]


class Answers(Steps):
    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        text = fetch_data["text"][0]
        return Answer({"text": "enough"}) if text == "2" else {"text": text}


@on_loop
async def test_an_answer_ends_its_request_and_gives_up_its_seat():
    async with serving(Answers("Steps", input_ops=[RequestOp()]), **BATCHED) as streams:
        sink = streams.begin(n=10**9)
        assert await sink.ended() is None
        assert sink.texts == ["0", "1", "enough"]
        assert not streams.node("Steps").scheduler.under_way


@on_loop
async def test_each_step_is_an_execution_and_the_request_counts_once():
    async with serving(steps(), **BATCHED) as streams:
        await streams.begin(n=3).ended()
        await streams.idle()
        streams.journal.flush()
        assert len([row for row in streams.rows.spans if row["op"] == 0]) == 3
        assert len(streams.rows.requests) == 1


@on_loop
async def test_deadlines_hold_between_parts():
    config = {**BATCHED, "dag": {"part_timeout": 100}}
    async with serving(steps(), **config) as streams:
        await streams.begin(n=1).ended()
        op = SEEN["Steps"]
        op.gate.clear()
        sink = streams.begin(n=3)
        late = streams.begin(OneSink(), timeout_s=0.05, n=3)
        assert (await asyncio.wait_for(late, 20)).err_no == ErrorCode.TIMEOUT
        op.gate.set()
        await sink.ended()
        assert not streams.node("Steps")._runs


class Generates(Op):
    def process(self, feed_batch, log_id):
        yield {}


@on_loop
async def test_an_op_without_steps_is_refused_at_the_start():
    config = {"op": {"x": {"batching": "iterative"}}}
    for op, text in (
        (Generates("x", [RequestOp()]), "generator"),
        (Mark("x", [RequestOp()]), "no process"),
    ):
        with pytest.raises(GraphError, match=text):
            async with serving(op, **config):
                pass


@on_loop
async def test_random_requests_all_end_and_leave_nothing():
    random = Random(7)
    op = {**BATCHED["op"]["Steps"], "concurrency": 2}
    async with serving(steps(), dag={"stream_window": 3}, op={"Steps": op}) as streams:
        sinks = []
        for number in range(80):
            count, is_slow = random.randrange(1, 9), random.random() < 0.3
            bad = "x" if random.random() < 0.2 else ""
            sink = streams.begin(PartsSink(takes_at_once=not is_slow), n=count, bad=bad)
            sinks.append((sink, count, bad))
            if random.random() < 0.2:
                random.choice(sinks)[0].request.cancel()
            if number % 8 == 0:
                await asyncio.sleep(0)
        for sink, count, bad in sinks:
            if sink.request.generation == RequestState.OVER and sink.last == "nothing yet":
                continue  # cancelled: nothing more comes
            if not sink.takes_at_once:
                sink.takes_at_once = True
                sink.take(len(sink.answers))
            error = await sink.ended()
            ends_badly = bool(bad) and count > 2
            assert (error is not None) == ends_badly
            assert sink.texts == [f"{at}" for at in range(2 if ends_badly else count)]
        await streams.idle()
        node = streams.node("Steps")
        assert not node._runs
        assert node.scheduler.under_way == len(node.scheduler) == 0
