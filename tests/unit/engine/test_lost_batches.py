"""Batches whose worker died, hung, or does not return."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from doubles import Engine, answers, chain, settle, virtual

from pipeline.engine.run.stages import BatchRun
from pipeline.errors import DeadlineError, InitError, WorkerDiedError

DIED = WorkerDiedError("the worker process was killed")
LATE = DeadlineError("too long")


@dataclass
class Sample:
    data_id: int
    is_over: bool = False
    trace: str = ""
    is_feed: bool = False
    log_id: int = 7
    inputs: dict[str, Any] = field(default_factory=dict)


def run_of(*data_ids, over=(), attempts=0):
    samples = [Sample(data_id, data_id in over) for data_id in data_ids]
    return BatchRun(samples, attempts=attempts)


def shape(runs):
    return [([sample.data_id for sample in run.items], run.attempts) for run in runs]


# The rule ---------------------------------------------------------------------------------------


def test_a_batch_of_a_dead_worker_is_split_without_an_attempt():
    assert shape(run_of(1, 2, 3).again(DIED, 1)) == [([1], 0), ([2], 0), ([3], 0)]


def test_a_single_request_of_a_dead_worker_is_repeated_as_configured():
    run, tries = run_of(1), 0
    while runs := run.again(DIED, 3):
        (run,) = runs
        tries += 1
    assert tries == 2
    assert run.attempts == 2


def test_a_batch_that_timed_out_is_split_while_attempts_remain():
    assert shape(run_of(1, 2).again(LATE, 2)) == [([1], 1), ([2], 1)]
    assert run_of(1, 2, attempts=1).again(LATE, 2) == []


def test_a_repetition_omits_finished_requests():
    assert shape(run_of(1, 2, 3, over=(2,)).again(LATE, 2)) == [([1], 1), ([3], 1)]
    assert shape(run_of(1, 2, over=(2,)).again(DIED, 2)) == [([1], 0)]


def test_a_remaining_request_does_not_lose_an_attempt_for_finished_ones():
    """The worker may have died of the request that has ended meanwhile."""
    assert shape(run_of(1, 2, over=(2,)).again(DIED, 1)) == [([1], 0)]


@pytest.mark.parametrize("error", [DIED, LATE, InitError("outage")])
def test_a_batch_of_finished_requests_is_not_repeated(error):
    assert run_of(1, 2, over=(1, 2)).again(error, 5) == []


def test_an_outage_is_not_waited_for():
    assert run_of(1, 2).again(InitError("all workers end again and again"), 5) == []


def test_a_repeated_run_starts_without_outcomes():
    run = run_of(1, 2)
    run.outcomes, run.is_superseded, run.jumped = ["left over", None], True, True
    for fresh in (*run.again(DIED, 2), *run.again(LATE, 2)):
        assert (fresh.outcomes, fresh.is_superseded, fresh.jumped) == ([], False, False)


def test_the_error_names_worker_cause_and_batch():
    text = str(run_of(4, 5).died("op", 2, "was killed by SIGSEGV (a native crash)"))
    assert "[op] failed to predict. (data_id=4 log_id=7) [op|2]" in text
    assert "(batch: [4, 5]): the worker process was killed by SIGSEGV (a native crash)." in text


# In the engine ---------------------------------------------------------------------------------


def batched(retry=1, **more):
    """Configure one Op that takes up to 4 ready requests; the test ends its calls."""
    settings = {"batch_size": 4, "concurrency": 1, "retry": retry, **more}
    return {"op": {"slow": settings}}


class Lossy(Engine):
    """An engine of one Op whose worker is lost when the test says so."""

    def __init__(self, **settings):
        super().__init__(chain("slow"), batched(**settings), {"slow": None})

    @property
    def pool(self):
        return self.pools["slow"]

    def lose(self, error=DIED):
        """The running batch's worker is gone; another takes its place."""
        (worker,) = self.pool.busy()
        job = worker.job
        self.pool.replace(worker, None)
        self.pool.owner.lost(job, error)
        self.pool.submit([])  # the other worker takes what was queued
        return job

    async def ask_all(self, *names, **more):
        """Requests that become one batch, behind one that is let through first."""
        first = self.ask(path="first")
        await settle()
        tasks = [self.ask(path=name, **more) for name in names]
        await settle()
        self.pool.release()
        await first
        await settle()
        return tasks


@virtual
async def test_after_a_worker_died_requests_run_alone_and_only_the_deadly_one_fails():
    async with Lossy() as engine:
        good, deadly, other = await engine.ask_all("good", "deadly", "other")
        assert engine.pool.batches[-1] == [1, 2, 3]
        engine.lose()
        for data_id in (1, 2, 3):
            await settle()
            assert engine.pool.batches[-1] == [data_id]
            if data_id == 2:
                engine.lose()
            else:
                engine.pool.release()
        assert answers(await good) == {"path": "good>slow"}
        assert answers(await other) == {"path": "other>slow"}
        response = await deadly
        assert response.err_no == 10000
        assert "killed" in response.err_msg


@virtual
async def test_a_request_is_tried_as_often_as_configured_on_workers_that_die():
    async with Lossy(retry=3) as engine:
        answer = engine.ask(path="x")
        for _ in range(2):
            await settle()
            engine.lose()
        await settle()
        engine.pool.release()
        assert answers(await answer) == {"path": "x>slow"}
        assert engine.pool.batches == [[0]] * 3


@virtual
async def test_a_batch_that_is_lost_twice_is_started_over_once():
    async with Lossy(retry=5) as engine:
        answer = engine.ask(path="x")
        await settle()
        job = engine.lose()
        engine.pool.owner.lost(job, DIED)
        await settle()
        assert engine.pool.batches == [[0]] * 2
        engine.pool.release()
        await answer
        node = next(iter(engine.nodes.values()))
        assert node.load.running == 0


@virtual
async def test_a_result_after_the_loss_is_ignored():
    async with Lossy(retry=2) as engine:
        answer = engine.ask(path="x")
        await settle()
        (worker,) = engine.pool.busy()
        job = engine.lose()
        job.outcomes = [{"path": "too late"}]
        engine.pool.owner.done(worker, job)
        await settle()
        engine.pool.release()
        assert answers(await answer) == {"path": "x>slow"}


@virtual
async def test_requests_that_are_over_when_their_worker_dies_are_left_alone():
    async with Lossy(retry=3) as engine:
        good, left = await engine.ask_all("good", "gone")
        left.cancel()
        await settle()
        engine.lose()
        await settle()
        assert engine.pool.batches[-1] == [1]
        engine.pool.release()
        assert answers(await good) == {"path": "good>slow"}
        node = next(iter(engine.nodes.values()))
        assert (node.load.running, engine.executor.inside) == (0, 0)


@virtual
async def test_a_lost_batch_of_finished_requests_is_not_repeated():
    async with Lossy(retry=3) as engine:
        requests = await engine.ask_all("a", "b")
        for task in requests:
            task.cancel()
        await settle()
        begun = len(engine.pool.batches)
        engine.lose()
        await settle()
        assert len(engine.pool.batches) == begun
        node = next(iter(engine.nodes.values()))
        assert (node.load.running, engine.executor.inside) == (0, 0)


@virtual
async def test_an_outage_fails_lost_requests_with_its_reason():
    async with Lossy(retry=3) as engine:
        requests = await engine.ask_all("a", "b")
        engine.lose(InitError("all its worker processes end again and again"))
        for response in await asyncio.gather(*requests):
            assert response.err_no == 3003
            assert "again and again" in response.err_msg


@virtual
async def test_a_lost_batch_of_an_earlier_generation_does_not_count():
    """dag.retry raised the request's generation while its old batch was still running."""
    async with Lossy(retry=1) as engine:
        answer = engine.ask(path="x")
        await settle()
        (request,) = engine.executor._admission.active
        request.generation += 1
        request.live = 0
        node = next(iter(engine.nodes.values()))
        node.drop(request)
        node.enqueue(request, node.channel.producers[0], {"path": "again"})
        engine.lose()
        await settle()
        assert engine.pool.batches == [[0], [0]]
        engine.pool.release()
        assert answers(await answer) == {"path": "again>slow"}
        assert node.load.running == 0


@virtual
async def test_a_batch_in_a_hanging_process_is_repeated_and_then_fails():
    """What a worker process got to is known there only, so the whole batch starts over."""
    async with Lossy(retry=2, timeout=100) as engine:
        answer = engine.ask(path="x")
        for attempt in (1, 2):
            await settle()
            (worker,) = engine.pool.busy()
            worker.job.calls = None  # as it is when another process has it
            await asyncio.sleep(0.06)
            assert len(engine.pool.given_up) == attempt - 1
            await asyncio.sleep(0.05)
            assert len(engine.pool.given_up) == attempt
        response = await answer
        assert response.err_no == 6000
        assert "exceeded retry count" in response.err_msg
