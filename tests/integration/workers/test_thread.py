"""Thread workers, on real threads; every interleaving is forced by events and barriers."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
from doubles import RecordingOwner, on_loop, settle, side_by_side, wait_until

from pipeline import Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.errors import DeadlineError, InitError, PipelineError
from pipeline.op import configure_op
from pipeline.workers import thread
from pipeline.workers.inbox import LoopInbox
from pipeline.workers.thread import ThreadWorkers


class Task:
    """A job that runs a function."""

    def __init__(self, function=lambda op: None, worker=None):
        self.function = function
        self.worker = worker
        self.ran_in = None

    def run(self, op, watch, clock_ns):
        self.ran_in = threading.current_thread()
        watch.call_begins()
        self.function(op.op)
        watch.call_ends()


class BoundTask(Task):
    """A job that runs a function of the worker's BoundOp."""

    bound = None

    def run(self, op, watch, clock_ns):
        self.bound = op
        self.function(op)


class Pool:
    def __init__(self, op=None, count=1, set_up=lambda op, worker: None):
        op = op or Op("op")
        configure_op(
            op, resolve_op(op.name, op.pipeline_given, load_config(yml_dict={"rpc_port": 0}))
        )
        loop = asyncio.get_running_loop()
        self.owner = RecordingOwner()
        self.done = self.owner.finished
        self.workers = ThreadWorkers(
            op,
            count,
            loop,
            LoopInbox(loop, after=lambda: None),
            set_up,
            self.owner,
        )

    async def __aenter__(self):
        await self.workers.start()
        return self

    async def __aexit__(self, *_):
        assert await self.workers.stop(10.0) == 0

    async def until(self, condition):
        await asyncio.to_thread(wait_until, condition)
        await settle()


class HoldsGil:
    """A predictor that keeps the interpreter while it runs."""

    holds_gil = True

    def predict(self, feed):
        return feed


@pytest.mark.parametrize(("predictor", "warnings"), [(HoldsGil(), 1), (object(), 0)])
@on_loop
async def test_a_model_that_holds_the_gil_in_threads_is_warned_about(caplog, predictor, warnings):
    def set_up(op, worker):
        op.client = predictor

    async with Pool(Op("a"), 2, set_up):
        pass
    assert caplog.text.count("set op.a.workers: process") == warnings


@on_loop
async def test_init_op_runs_once_in_the_first_workers_thread_after_the_predictor_is_set():
    class Loads(Op):
        def init_op(self):
            seen.append((self.client, threading.current_thread().name))

    seen = []
    async with Pool(Loads("op"), 3, set_up=lambda op, worker: setattr(op, "client", "model")):
        assert seen == [("model", "pipeline-op-0")]


@on_loop
async def test_a_worker_dismissed_during_a_trip_ends_on_its_return():
    async with Pool(count=2) as pool:
        lender = pool.workers.lender
        lent = lender.idle.pop()
        pool.workers.dismiss([lent.number])
        lender.idle.append(lent)  # as a trip does, in its thread
        await asyncio.to_thread(lender.employ, lent)
        assert await pool.workers.have_left(10.0)
        assert lent not in lender.idle


@on_loop
async def test_an_async_init_op_runs_on_the_loop():
    class Loads(Op):
        async def init_op(self):
            await asyncio.sleep(0)
            seen.append(asyncio.get_running_loop())

    seen = []
    async with Pool(Loads("op")):
        assert seen == [asyncio.get_running_loop()]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [ValueError("no file"), SystemExit("no file")])
@on_loop
async def test_an_init_op_that_fails_fails_the_start_with_name_and_traceback(error, is_async):
    class Broken(Op):
        def init_op(self):
            raise error

    class BrokenOnLoop(Op):
        async def init_op(self):
            raise error

    pool = Pool((BrokenOnLoop if is_async else Broken)("broken_one"), 2)
    with pytest.raises(InitError, match=r"(?s)'broken_one' failed.*no file.*in init_op"):
        await pool.workers.start()
    assert await pool.workers.stop(10.0) == 0


@on_loop
async def test_a_stop_does_not_wait_for_jobs_of_a_start_that_was_cancelled(monkeypatch):
    """Another Op has failed to start."""

    class Loads(Op):
        def init_op(self):
            entered.set()
            assert gate.wait(30)

    monkeypatch.setattr(thread, "_LOOK_S", 3600.0)
    entered, gate = threading.Event(), threading.Event()
    pool = Pool(Loads("op"))
    start = asyncio.ensure_future(pool.workers.start())
    await pool.until(entered.is_set)
    start.cancel()
    await asyncio.wait([start])
    stop = asyncio.ensure_future(pool.workers.stop(10.0))
    await settle()
    gate.set()
    assert await asyncio.wait_for(stop, 30) == 0


@on_loop
async def test_every_worker_works_on_its_own_copy_of_the_op():
    async with Pool(count=4) as pool:
        meeting = threading.Barrier(4, timeout=20)
        seen = []

        def store_and_read(op):
            op.mine = threading.current_thread().name
            meeting.wait()  # all four have stored before any of them reads
            seen.append(op.mine == threading.current_thread().name)

        for _ in range(4):
            pool.workers.submit([Task(store_and_read)])
        await pool.until(lambda: len(pool.done) == 4)
        assert seen == [True] * 4


@on_loop
async def test_a_stuck_worker_is_replaced_and_its_late_result_is_ignored():
    async with Pool() as pool:
        began, release = threading.Event(), threading.Event()

        def hang(op):
            began.set()
            release.wait(20)

        hung = Task(hang)
        pool.workers.submit([hung])
        await asyncio.to_thread(began.wait, 20)
        (worker,) = pool.workers.busy()
        assert worker.job is hung
        assert worker.call_started is not None
        resumed = Task()
        assert pool.workers.replace(worker, resumed)
        await pool.until(lambda: len(pool.done) == 1)
        assert pool.done[0][1] is resumed
        assert (pool.workers.count, pool.workers.state().stuck, pool.workers.state().restarts) == (
            1,
            1,
            1,
        )
        release.set()
        await pool.until(lambda: pool.workers.state().stuck == 0)
        assert pool.workers.count == 1
        assert not hung.ran_in.is_alive() or await asyncio.to_thread(hung.ran_in.join, 20) is None


@on_loop
async def test_the_replacement_has_the_state_of_the_worker_it_replaces():
    async with Pool() as pool:
        began, release = threading.Event(), threading.Event()

        def hang(op):
            op.raw_im = "picture"
            began.set()
            release.wait(20)

        pool.workers.submit([Task(hang)])
        await asyncio.to_thread(began.wait, 20)
        seen = []
        (worker,) = pool.workers.busy()
        pool.workers.replace(worker, Task(lambda op: seen.append(op.raw_im)))
        await pool.until(lambda: bool(seen))
        assert seen == ["picture"]
        release.set()


@on_loop
async def test_the_number_of_stuck_workers_is_limited_until_they_return():
    async with Pool() as pool:
        release = threading.Event()
        replaced = True
        while replaced:
            began = threading.Event()

            def hang(op, began=began):
                began.set()
                release.wait(20)

            pool.workers.submit([Task(hang)])
            await asyncio.to_thread(began.wait, 20)
            (worker,) = pool.workers.busy()
            replaced = pool.workers.replace(worker, None)
        assert pool.workers.count == 0
        assert pool.workers.state().stuck == 33
        release.set()
        await pool.until(lambda: pool.workers.count == 1 and pool.workers.state().stuck == 0)
        pool.workers.submit([Task()])
        await pool.until(lambda: len(pool.done) >= 1)


@on_loop
async def test_waiting_jobs_are_lost_when_the_last_worker_is_not_replaced():
    async with Pool() as pool:
        release = threading.Event()
        replaced = True
        while replaced:
            began = threading.Event()

            def hang(op, began=began):
                began.set()
                release.wait(20)

            pool.workers.submit([Task(hang)])
            await asyncio.to_thread(began.wait, 20)
            waiting = Task()
            (worker,) = pool.workers.busy()
            if pool.workers.state().stuck == 32:
                pool.workers.submit([waiting])
            replaced = pool.workers.replace(worker, None)
        ((lost, error),) = pool.owner.losses
        assert lost is waiting
        assert isinstance(error, DeadlineError)
        assert not pool.workers.pool.backlog
        release.set()
        await pool.until(lambda: pool.workers.count == 1 and pool.workers.state().stuck == 0)


@on_loop
async def test_an_async_method_that_hangs_is_cancelled_and_its_thread_returns():
    class Hangs(Op):
        async def process(self, feed_batch, typical_logid):
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    def call(bound):
        with pytest.raises(PipelineError, match="process was cancelled"):
            bound.process({}, 0)

    ended = threading.Event()
    async with Pool(Hangs("op")) as pool:
        for _ in range(40):  # more than may be stuck at once
            ended.clear()
            job = BoundTask(call)
            pool.workers.submit([job])
            await pool.until(lambda job=job: job.bound and job.bound._awaited is not None)
            (worker,) = pool.workers.busy()
            assert pool.workers.replace(worker, None)
            await pool.until(lambda: pool.workers.state().stuck == 0)
            assert await asyncio.to_thread(ended.wait, 20)


@on_loop
async def test_the_mailbox_wakes_the_loop_once_for_all_that_is_ready():
    loop = asyncio.get_running_loop()
    wakes = []
    box = LoopInbox(loop, after=lambda: wakes.append(1))
    collected = []
    # The loop is busy here, so all of these are ready before it can wake.
    side_by_side(lambda i: box.post(lambda *_: collected.append(i), None, None), 10)
    await settle()
    assert sorted(collected) == list(range(10))
    assert len(wakes) == 1


@on_loop
async def test_a_message_that_fails_does_not_block_later_ones():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    failures, collected, wakes = [], [], []
    box = LoopInbox(loop, after=lambda: wakes.append(len(collected)))

    def fail(*_):
        raise KeyError("no")

    box.post(lambda *_: collected.append(1), None, None)
    box.post(fail, None, None)
    box.post(lambda *_: collected.append(2), None, None)
    await settle()
    assert [type(error) for error in failures] == [KeyError]
    assert collected == [1, 2]
    assert wakes[-1] == 2


def test_a_post_after_the_loop_is_closed_is_dropped():
    loop = asyncio.new_event_loop()
    box = LoopInbox(loop, after=lambda: None)
    loop.close()
    box.post(lambda *_: pytest.fail("must not run"), None, None)


@on_loop
async def test_a_quick_job_of_a_hanging_worker_moves_to_another():
    async with Pool(count=2) as pool:
        for number in range(200):  # the pool learns that its jobs are quick
            pool.workers.submit([Task()])
            await pool.until(lambda number=number: len(pool.done) > number)
        began, release = threading.Event(), threading.Event()

        def hang(op):
            began.set()
            release.wait(20)

        pool.workers.submit([Task(hang)])
        await asyncio.to_thread(began.wait, 20)
        left = Task()
        pool.workers.submit([left])
        await pool.until(lambda: any(job is left for _, job in pool.done))
        release.set()


# What the starter of the server set in its context ------------------------------------------

MARK = contextvars.ContextVar("mark", default="none")


async def marks_of_two_workers(pool):
    """What two workers that are at work at the same time find."""
    both = threading.Barrier(2, timeout=20)
    seen = []

    def look(op):
        both.wait()
        seen.append(MARK.get())
        MARK.set("one worker's own")

    for _ in range(2):
        pool.workers.submit([Task(look)])
    await pool.until(lambda: len(pool.done) == 2)
    return seen


@on_loop
async def test_workers_run_in_copies_of_the_context_that_they_are_made_in():
    MARK.set("starter")
    pool = Pool(count=2)
    MARK.set("later")
    async with pool:
        assert await marks_of_two_workers(pool) == ["starter", "starter"]
    assert MARK.get() == "later"


class SetsMark(Op):
    def init_op(self):
        MARK.set("init_op")


class SetsMarkAsync(Op):
    async def init_op(self):
        await asyncio.sleep(0)
        MARK.set("init_op")


@pytest.mark.parametrize("kind", [SetsMark, SetsMarkAsync])
@on_loop
async def test_a_context_variable_set_by_init_op_applies_to_each_worker(kind):
    async with Pool(kind("op"), 2) as pool:
        assert await marks_of_two_workers(pool) == ["init_op", "init_op"]


@on_loop
async def test_a_job_for_a_worker_waits_for_it_if_it_is_busy():
    async with Pool(count=3) as pool:
        on_done_busy = threading.Event()
        holds = Task(lambda op: on_done_busy.wait(10), worker=1)
        addressed = [Task(worker=1) for _ in range(5)]
        anybodys = Task()
        pool.workers.submit([holds, *addressed, anybodys])
        await pool.until(lambda: anybodys.ran_in is not None)
        assert not any(task.ran_in for task in addressed), "others are idle"
        on_done_busy.set()
        await pool.until(lambda: len(pool.done) == 7)
        pool.workers.submit([last := Task(worker=1)])
        await pool.until(lambda: len(pool.done) == 8)
        ran_in = {task.ran_in for task in (holds, *addressed, last)}
        assert [thread.name for thread in ran_in] == ["pipeline-op-1"]


@on_loop
async def test_a_job_for_a_hanging_worker_runs_at_its_replacement():
    async with Pool(count=2) as pool:
        on_done_busy = threading.Event()
        hangs, waits = Task(lambda op: on_done_busy.wait(10), worker=0), Task(worker=0)
        pool.workers.submit([hangs, waits])
        await pool.until(lambda: any(pool.workers.busy()))
        (worker,) = pool.workers.busy()
        assert pool.workers.replace(worker, None)
        await pool.until(lambda: waits.ran_in is not None)
        assert waits.ran_in is not hangs.ran_in
        assert waits.ran_in.name == "pipeline-op-0"
        on_done_busy.set()
        await pool.until(lambda: pool.workers.state().stuck == 0)


@on_loop
async def test_a_job_for_a_missing_worker_runs_at_any_worker():
    async with Pool(count=1) as pool:
        pool.workers.submit([task := Task(worker=9)])
        await pool.until(lambda: task.ran_in is not None)
