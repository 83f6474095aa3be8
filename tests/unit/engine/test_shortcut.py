"""Requests that go past the scheduler: at once where nothing is worked on, else together."""

from __future__ import annotations

import asyncio
from collections import deque

import doubles
import pytest
from doubles import Engine, ScriptedWorkers, Tag, answers, run_virtual, settle

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import Item
from pipeline.engine.run.stages import BatchRun


class LendingWorkers(ScriptedWorkers):
    """Scripted workers that are lent, though none is ever idle; `given`: what came together."""

    def __init__(self, *args):
        super().__init__(*args)
        self.given = []
        self.idle, self.backlog = [], deque()
        self.lender, self.visit_type = self, Item

    def submit(self, jobs):
        self.given.append([type(job) for job in jobs])
        super().submit(jobs)

    def states(self):
        return []

    def employ(self, worker):
        raise AssertionError("none was lent")

    def part(self, trip):
        return None


@pytest.fixture(autouse=True)
def lending(monkeypatch):
    monkeypatch.setattr(doubles, "ScriptedWorkers", LendingWorkers)


class Multiplies(Op):
    def process(self, feed_batch, typical_logid):
        return {"x": feed_batch[0]["x"] * 2}


class Reads(RequestOp):
    def unpack_request_package(self, request):
        return {"x": 3}, 0, None, ""


async def finish(pool, count):
    for _ in range(count):
        pool.release()
        await settle()


def test_single_requests_start_at_once_and_simultaneous_ones_share_a_batch():
    async def main():
        last = Tag("a", [RequestOp()])
        async with Engine(last, service_s={"a": None}) as engine:
            pool, load = engine.pools["a"], engine.nodes[last].load
            asked = [engine.ask()]
            await settle()
            await finish(pool, 1)
            assert pool.given == [[BatchRun]]  # how many workers there are was not known
            load.service_s = 1e-5  # a scripted run takes no time by its own clock
            asked.append(engine.ask())
            await settle()
            assert pool.given[1:] == [[Item]]
            asked += [engine.ask() for _ in range(3)]
            await settle()
            assert pool.given[2:] == [[Item] * 3]
            await finish(pool, 4)
            asked += [engine.ask() for _ in range(2)]
            await settle()
            assert pool.given[3:] == [[Item] * 2]  # in such a crowd the first one also waits
            await finish(pool, 2)
            for _ in range(2):
                asked.append(engine.ask())
                await settle()
                await finish(pool, 1)
            assert pool.given[4:] == [[Item], [Item]]
            assert {answers(item)["path"] for item in await asyncio.gather(*asked)} == {"a"}
            engine.journal.flush()
            assert sorted(span["data_id"] for span in engine.spans) == [*range(len(asked))]

    run_virtual(main())


def test_workers_of_a_plug_in_that_take_items_run_process_too(monkeypatch):
    class WorkersWithoutLender(LendingWorkers):
        lender = property(lambda self: None, lambda self, value: None)

    monkeypatch.setattr(doubles, "ScriptedWorkers", WorkersWithoutLender)

    async def main():
        async with Engine(Multiplies("a", [Reads()])) as engine:
            for _ in range(2):  # of the first one it is not known that there are workers
                assert answers(await engine.ask()) == {"x": "6"}

    run_virtual(main())


@pytest.mark.parametrize("goes_well", [True, False])
def test_a_successful_request_and_its_only_span_are_one_row(goes_well):
    class Packs(ResponseOp):
        def pack_response_package(self, channeldata):
            if not goes_well:
                raise KeyError("x")
            return super().pack_response_package(channeldata)

    async def main():
        last = Tag("a", [RequestOp()])
        async with Engine(last, response_op=Packs(input_ops=[last])) as engine:
            await engine.ask()
            engine.journal.flush()
            await engine.ask()
            assert engine.journal.extra_spans == 1
            assert not engine.journal.spans
            assert len(engine.journal.requests) == (not goes_well)
            engine.journal.flush()
            (first, span), (_, record) = engine.spans, engine.requests
            assert (span["data_id"], span["batch"]) == (record["data_id"], first["batch"] + 1)
            assert record["outcome"] == (Outcome.OK if goes_well else Outcome.BACKEND)
            assert span["outcome"] == Outcome.OK
            assert record["input_ns"] == span["preprocess_end_ns"] - span["start_ns"]
            assert record["output_ns"] == span["end_ns"] - span["process_end_ns"]
            assert record["start_ns"] <= span["ready_ns"] <= span["end_ns"] <= record["end_ns"]

    run_virtual(main())


def test_an_op_with_process_gets_batches():
    async def main():
        last = Multiplies(name="m", input_ops=[RequestOp()])
        async with Engine(last) as engine:
            for _ in range(3):
                assert answers(await engine.ask(x="ab"))["x"] == "abab"
            assert engine.pools["m"].given == [[BatchRun]] * 3
            assert engine.nodes[last].shortcut.taken == 2

    run_virtual(main())


def test_a_slow_op_has_its_scheduler_choose():
    async def main():
        last = Tag("a", [RequestOp()])
        async with Engine(last, service_s={"a": 0.1}) as engine:
            node = engine.nodes[last]
            await engine.ask()
            node.load.service_s = 0.1  # a scripted run takes no time by its own clock
            tasks = [engine.ask() for _ in range(4)]
            await settle()
            assert len(node.scheduler) == 3
            await asyncio.gather(*tasks)
            assert node.shortcut.taken == 1

    run_virtual(main())


def test_batches_and_bounded_channels_need_the_scheduler():
    async def main():
        last = Tag("a", [RequestOp()])
        async with Engine(last, {"op": {"a": {"batch_size": 2}}}) as engine:
            assert engine.nodes[last].shortcut is None
        last = Tag("a", [RequestOp()])
        async with Engine(last, {"dag": {"channel_size": 2}}) as engine:
            assert engine.nodes[last].shortcut is None

    run_virtual(main())


def test_a_worker_that_hangs_for_a_finished_request_is_given_up():
    after = []

    class Notes(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            return {}, False, None, ""

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            after.append(data_id)
            return {"x": "1"}, None, ""

    async def main():
        last = Notes(name="n", input_ops=[RequestOp()])
        async with Engine(last, service_s={"n": None}) as engine:
            pool, node = engine.pools["n"], engine.nodes[last]
            first = engine.ask()
            await settle()
            pool.release()
            await first
            hanging = engine.ask()
            await settle()
            job = pool._workers[0].job
            assert type(job) is Item
            hanging.cancel()
            await asyncio.sleep(2.0)
            assert [worker.number for worker in pool.given_up] == [0]
            assert node.load.running == node.load.items == 0
            worker = pool.given_up[0]
            job.run(worker.op, worker, lambda: 1)  # it comes back after all
            node.done(worker, job)
            assert after == [0]
            assert node.load.running == 0

    run_virtual(main())
