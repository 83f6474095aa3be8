"""Large messages are processed beside the event loop, as long as a caller waits."""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref

import pytest
from doubles import in_place_of, on_loop, without_gc

from pipeline.engine.offload import Offload
from pipeline.errors import DeadlineError
from pipeline.proto.slices import AbandonedError, breathe


def offloaded(**how):
    """Runs an async test with an `offload` that was made so."""

    def decorate(test):
        @on_loop
        async def run(**fixtures):
            offload = Offload(**how)
            offload.start()
            try:
                await test(offload, **fixtures)
            finally:
                await offload.stop()

        return in_place_of(test, run, "offload")

    return decorate


@offloaded()
async def test_work_runs_in_its_own_thread_and_returns_its_result(offload):
    thread, left_s = await offload.run(threading.current_thread)
    assert thread.name.startswith("pipeline-large")
    assert left_s is None


@offloaded()
async def test_an_error_of_the_work_is_the_askers(offload):
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0)


@offloaded(threads=1)
async def test_objects_of_the_work_are_released_with_its_error(offload):
    class Body:
        pass

    def work(body):
        raise ZeroDivisionError

    with without_gc():
        body = Body()
        reference, partial = weakref.ref(body), functools.partial(work, body)
        del body
        try:
            await offload.run(partial)
        except ZeroDivisionError:
            del partial
        await offload.run(lambda: None)  # the thread has dropped the work before this one
        assert reference() is None


@offloaded(limit_s=50.0)
async def test_the_earlier_deadline_counts_and_the_rest_is_returned(offload):
    _, left_s = await offload.run(lambda: None, 1000.0)
    assert 0 < left_s <= 50.0


@offloaded(threads=1)
async def test_work_past_its_deadline_ends_at_its_next_slice(offload):
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def work():
        begun.set()
        released.wait(20)
        try:
            breathe()
        except AbandonedError:
            ended.set()
            raise

    limit_s = 0.01
    while not begun.is_set():  # it may be over before it has begun
        with pytest.raises(DeadlineError):
            await offload.run(work, limit_s)
        limit_s *= 2
    released.set()
    assert await asyncio.to_thread(ended.wait, 20)


@offloaded(threads=1)
async def test_work_of_a_cancelled_caller_never_starts(offload):
    released, begun = threading.Event(), []
    first = asyncio.ensure_future(offload.run(lambda: released.wait(20)))
    second = asyncio.ensure_future(offload.run(lambda: begun.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    released.set()
    await first
    await offload.run(lambda: None)  # behind the second
    assert begun == []


@offloaded(threads=2)
async def test_no_more_works_at_once_than_there_are_threads(offload):
    inside, most, lock = [0], [0], threading.Lock()

    def work():
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        breathe()
        with lock:
            inside[0] -= 1

    await asyncio.gather(*(offload.run(work) for _ in range(20)))
    assert most[0] <= 2


@offloaded(threads=1)
async def test_stop_ends_running_work(offload):
    begun = threading.Event()

    def work():
        begun.set()
        while True:
            breathe()

    task = asyncio.ensure_future(offload.run(work))
    assert await asyncio.to_thread(begun.wait, 20)
    await offload.stop()
    with pytest.raises(AbandonedError):
        await task


@offloaded(threads=0)
async def test_without_threads_work_runs_on_the_loop(offload):
    assert await offload.run(threading.current_thread, 5.0) == (threading.current_thread(), 5.0)
