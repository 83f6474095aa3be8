"""Convoys: requests of one form go through an engine as one, and end each by itself."""

from __future__ import annotations

import asyncio
import random

import doubles
import numpy as np
import pytest
from doubles import run_virtual

from pipeline import Op, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import RequestInfo
from pipeline.engine.convoy import (
    Convoy,
    MemberOutcomes,
    extra_members,
    member_outcomes,
    parts_of,
    stacked,
    together,
)
from pipeline.engine.convoy_way import SharedMessages
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal, Outcome
from pipeline.engine.request import AnswerFuture, RequestTarget
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import Load
from pipeline.errors import InputError, WorkerDiedError
from pipeline.op import configure_op
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.slices import SHORT_BYTES


def row(*values, dtype=np.float32):
    return np.array([values], dtype)


class Adds(Op):
    """y is x + 1, of each request by itself; below 0 it is refused."""

    pipeline_merges = False

    def __init__(self, name="adds"):
        super().__init__(name, RequestOp())
        self.seen = []

    def process(self, feed_batch, log_id=0, *, context=()):
        reported = zip(feed_batch, context, strict=True)
        self.seen.append([(feed["x"].tolist(), each.id) for feed, each in reported])
        return [
            InputError("below zero") if feed["x"].min() < 0 else {"y": feed["x"] + 1}
            for feed in feed_batch
        ]


class Rows:
    def __init__(self):
        self.spans, self.requests = [], []

    def notify(self, spans, requests):
        for rows, kept in ((spans, self.spans), (requests, self.requests)):
            kept += [dict(zip(rows.dtype.names, item, strict=True)) for item in rows.tolist()]


class ConvoyEngine:
    """An engine of one Op on a virtual clock; `told` are the failures that its log has."""

    def __init__(self, op, service_s=0.0, **settings):
        self.op, self.service_s = op, service_s
        settings = {"batching": "dynamic", "batch_size": 8, **settings}
        self.config = load_config(yml_dict={"rpc_port": 0, "op": {op.name: settings}})
        self.graph = build_graph(ResponseOp(op))
        for item in (self.graph.request_op, *self.graph.ops, self.graph.response_op):
            configure_op(item, resolve_op(item.name, item.pipeline_given, self.config))
        self.rows, self.told = Rows(), []

    async def __aenter__(self):
        loop = asyncio.get_running_loop()

        def make_workers(pump):
            def make(op, owner):
                pool = doubles.ScriptedWorkers(op, owner, self.service_s)
                if op is self.op:
                    self.pool = pool
                return pool

            return make

        self.journal = Journal([self.rows])
        observers = EngineObservers(
            self.journal,
            on_failure=lambda request, error: self.told.append((request.data_id, str(error))),
            clock_ns=lambda: int(loop.time() * 1e9),
        )
        self.engine = Engine(self.graph, self.config, make_workers, loop, observers)
        await self.engine.start()
        return self

    async def __aexit__(self, *failure):
        await self.engine.stop(0.0)

    def ask(self, convoy, **inputs):
        """Have it begin; returns a future of the ChannelData."""
        answer = AnswerFuture(loop=asyncio.get_running_loop())
        rows = sum(convoy.rows)
        target = RequestTarget(self.op, inputs, True, False, rows, convoy=convoy)
        answer.request = self.engine.begin(Request(), None, target, answer)
        return answer

    def ended(self):
        """Return (the requests, the spans) in the journal, in the order of their data ids."""
        self.journal.flush()
        return tuple(
            sorted(rows, key=lambda item: item["data_id"])
            for rows in (self.rows.requests, self.rows.spans)
        )


async def settled():
    for _ in range(9):
        await asyncio.sleep(0)


def lists(outcomes):
    return [
        str(outcome) if isinstance(outcome, Exception) else outcome and outcome["y"].tolist()
        for outcome in outcomes
    ]


def test_members_of_a_convoy_count_as_requests():
    async def main():
        async with ConvoyEngine(Adds()) as world:
            infos = [RequestInfo(id="a"), RequestInfo(id="b")]
            data = await world.ask(Convoy([1, 2], infos), x=np.array([[1], [2], [3]], np.float32))
            assert {name: value.tolist() for name, value in data.payload.items()} == {
                "y": [[2], [3], [4]]
            }
            assert world.op.seen == [[([[1.0]], "a"), ([[2.0], [3.0]], "b")]]
            requests, spans = world.ended()
            assert [(request["rows"], request["outcome"]) for request in requests] == [
                (1, 0),
                (2, 0),
            ]
            assert [(span["rows"], span["outcome"], span["batch"]) for span in spans] == [
                (1, 0, 1),
                (2, 0, 1),
            ]
            assert [request["data_id"] for request in requests] == [
                span["data_id"] for span in spans
            ]
            assert (world.engine.inside, world.engine.state().accepted) == (0, 2)

    run_virtual(main())


def test_a_failing_member_fails_alone():
    async def main():
        async with ConvoyEngine(Adds()) as world:
            data = await world.ask(Convoy([1, 1, 1]), x=np.array([[1], [-2], [3]], np.float32))
            assert type(data.payload) is MemberOutcomes
            assert lists(member_outcomes(data.payload, [1, 1, 1])) == [[[2]], "below zero", [[4]]]
            requests, spans = world.ended()
            wanted = [Outcome.OK, Outcome.BACKEND, Outcome.OK]
            assert [request["outcome"] for request in requests] == wanted
            assert [span["outcome"] for span in spans] == wanted
            assert world.told == [(requests[1]["data_id"], "below zero")]

    run_virtual(main())


def test_a_cancelled_member_is_not_processed_and_counts_as_cancelled():
    async def main():
        async with ConvoyEngine(Adds(), service_s=None) as world:
            blocker = world.ask(Convoy([1]), x=row(9))
            await settled()
            convoy = Convoy([1, 1])
            answer = world.ask(convoy, x=np.array([[1], [2]], np.float32))
            await settled()
            convoy.leave(0)
            world.pool.release()
            await blocker
            await settled()
            world.pool.release()
            data = await answer
            assert lists(member_outcomes(data.payload, [1, 1])) == [None, [[3]]]
            assert world.op.seen[-1] == [([[2.0]], "")]
            requests, spans = world.ended()
            wanted = [Outcome.OK, Outcome.CANCELED, Outcome.OK]
            assert [request["outcome"] for request in requests] == wanted
            assert [span["outcome"] for span in spans] == wanted

    run_virtual(main())


def test_a_batch_of_convoys_is_bounded_by_samples():
    async def main():
        async with ConvoyEngine(Adds(), service_s=0.1) as world:
            tasks = [
                world.ask(Convoy([1] * count), x=np.zeros((count, 1), np.float32))
                for count in (1, 5, 3, 4)
            ]
            assert world.engine.inside == 13
            await asyncio.sleep(0.05)
            assert world.engine.state().ops[0].queued + world.engine.state().ops[0].running == 13
            await asyncio.gather(*tasks)
            assert max(map(len, world.op.seen)) <= 8
            assert sum(map(len, world.op.seen)) == 13
            assert (world.engine.inside, world.engine.state().ops[0].running) == (0, 0)

    run_virtual(main())


def test_a_convoy_whose_worker_died_is_not_counted_because_its_members_run_again():
    async def main():
        async with ConvoyEngine(Adds(), service_s=None) as world:
            convoy = Convoy([1, 1])
            answer = world.ask(convoy, x=np.array([[1], [2]], np.float32))
            await settled()
            (run,) = (worker.job for worker in world.pool.busy())
            world.engine.executor.nodes[world.op].lost(run, WorkerDiedError("it died"))
            data = await answer
            assert convoy.runs_again(data.error)
            assert world.ended() == ([], [])
            assert world.told == []

    run_virtual(main())


@pytest.mark.parametrize(
    "settings",
    [
        {"batching": "full"},
        {"retry": 2},
        {"dynamic_batching": {"preserve_ordering": True}},
        {"dynamic_batching": {"preferred_batch_size": [4]}},
        {"dynamic_batching": {"priority_levels": 2, "default_priority_level": 1}},
        {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 9}}},
        {"response_cache": True},
    ],
    ids=str,
)
def test_no_convoy_passes_where_each_request_counts(settings):
    async def main():
        async with ConvoyEngine(Adds(), **settings) as world:
            assert world.engine.executor.convoys.size(1) == 0

    run_virtual(main())


def test_as_many_pass_as_a_batch_has_samples():
    async def main():
        async with ConvoyEngine(Adds()) as world:
            assert world.engine.executor.convoys.size(1) == 8
            assert world.engine.executor.convoys.size(3) == 2
            assert world.engine._admission.room(999) == 256
            world.engine._admission.active.extra = 251
            assert world.engine.executor.convoys.size(1) == 5
            world.engine._admission.active.extra = 256
            assert world.engine.executor.convoys.size(1) == 0
            world.engine._admission.active.extra = 0

    run_virtual(main())


# One after the other ------------------------------------------------------------------------------


class Ran:
    """A message of requests that took so long each, as a filter sees it when it is home."""

    def __init__(self, *took_us):
        self.items = [Item(Convoy([1] * len(took_us)))]
        self.run = BatchRun(self.items, preprocess_end_ns=1000, start_ns=1000)
        ends = np.cumsum(took_us) * 1000 + 1000
        self.run.execution_ends_ns = [int(end) for end in ends]
        self.run.end_ns = self.run.execution_ends_ns[-1]


class Item:
    def __init__(self, convoy):
        self.request = self
        self.convoy = convoy


class Node:
    """An Op whose batches are in processes."""

    name = "op"
    load = Load()

    def __init__(self):
        self.workers = self
        self.memory_domain = object()


def test_so_many_share_a_message_as_run_in_a_millisecond():
    shared = SharedMessages(Node())

    def size(messages, *took_us):
        for _ in range(messages):
            shared.release(lambda run: None, Ran(*took_us).run)
        return shared.convoy_size(1)

    assert size(0) == 1  # it is not known to be quick
    assert size(100, 50) == 19
    assert size(100, 5) == 32
    assert 5 <= size(1, *[5] * 15, 20_000) < 32  # one had to wait for a processor
    assert size(20, *[5] * 16) == 32
    assert size(2, *[20_000] * 16) == 1
    assert size(100, 400) == 2
    assert size(1, 10**9) <= 2


def test_the_member_that_ran_when_the_worker_died_is_reported():
    shared, convoy = SharedMessages(Node()), Convoy([1] * 4)
    run, died = BatchRun([Item(convoy)]), WorkerDiedError("it died")
    collected = []
    for run.lost_at in (-1, 2):
        collected += shared.again(lambda job, error: ([], job.items, error), run, died)[2:]
    assert collected[0] is died
    assert (collected[1].member, collected[1].error, died.op) == (2, died, "op")
    assert (list(convoy.ending(died)), list(convoy.ending(collected[1]))) == ([], [2])
    assert list(convoy.ending(None)) == list(convoy.ending(InputError("no"))) == [0, 1, 2, 3]


# Together and apart -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        [{"y": row(1)}, InputError("no")],
        [{"y": row(1)}, None],
        [{"y": row(1)}, {"z": row(1)}],
        [{"y": row(1)}, {"y": row(1), "z": row(1)}],
        [{"y": row(1)}, {"y": row(1, dtype=np.float64)}],
        [{"y": row(1)}, {"y": row(1, 2)}],
        [{"y": row(1)}, {"y": np.zeros((2, 1), np.float32)}],
        [{"y": np.float32(1)}, {"y": np.float32(1)}],
        [{"y": np.array(1)}, {"y": np.array(1)}],
        [{"y": np.array([["a"]])}, {"y": np.array([["b"]])}],
        [{"y": row("a", dtype=object)}, {"y": row("b", dtype=object)}],
        [{"y": np.zeros((1, SHORT_BYTES // 4), np.uint8)}] * 5,
        [{}, {}],
        [{"y": row(1), "@parameters": {}}, {"y": row(1), "@parameters": {}}],
    ],
)
def test_outcomes_of_different_form_remain_separate(parts):
    rows = [1] * len(parts)
    assert stacked(parts, rows) is None
    assert together(parts, rows).outcomes is parts


def test_stacked_members_are_split_unchanged():
    chance = random.Random(7)
    for _ in range(200):
        rows = [chance.randint(0, 3) for _ in range(chance.randint(1, 9))]
        form = {
            name: (
                chance.choice([np.float32, np.int64, np.bool_]),
                chance.choice([(), (2,), (2, 3)]),
            )
            for name in chance.sample("abcd", chance.randint(1, 4))
        }
        parts = [
            {
                name: np.arange(count * int(np.prod(shape))).reshape(count, *shape).astype(dtype)
                for name, (dtype, shape) in form.items()
            }
            for count in rows
        ]
        stack = stacked(parts, rows)
        for part, result in zip(parts, parts_of(stack, rows), strict=True):
            assert list(result) == list(part)
            for name, value in part.items():
                assert result[name].dtype == value.dtype
                np.testing.assert_array_equal(result[name], value)


def test_members_after_the_first_are_counted():
    assert extra_members([Item(None), Item(Convoy([1, 1, 1])), Item(Convoy([2]))]) == 2
