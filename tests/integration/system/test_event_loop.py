"""What a loop leaves behind: nothing of it holds the process, whatever user code does."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import weakref
from queue import SimpleQueue

import pytest
from doubles import on_loop, wait_until, without_gc

from pipeline.system import event_loop
from pipeline.system.event_loop import DaemonThreads, LoopThread, end_tasks, loop_factory


@pytest.fixture
def threads():
    executor = DaemonThreads(2, "test")
    yield executor
    executor.shutdown()


def test_a_job_runs_and_returns_its_result_or_error(threads):
    assert threads.submit(divmod, 7, 2).result(20) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(20)
    assert list(threads.map(abs, range(-3, 3))) == [3, 2, 1, 0, 1, 2]


def test_the_number_of_threads_is_limited_and_idle_ones_are_reused(threads):
    both = threading.Barrier(2)
    for _ in range(3):
        futures = [threads.submit(both.wait, 20) for _ in range(2)]
        assert sorted(future.result(20) for future in futures) == [0, 1]
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("test_")}
    assert names == {"test_0", "test_1"}


def test_after_the_shutdown_no_job_is_accepted_and_waiting_ones_can_be_cancelled(threads):
    release, began = threading.Event(), threading.Barrier(3)

    def hold():
        began.wait(20)
        return release.wait(20)

    running = [threads.submit(hold) for _ in range(2)]
    began.wait(20)
    waiting = threads.submit(hold)
    threads.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        threads.submit(hold)
    release.set()
    assert [future.result(20) for future in running] == [True, True]


def test_a_thread_may_take_the_last_job_during_a_shutdown(threads, monkeypatch):
    class NeverEmptyQueue(SimpleQueue):
        def empty(self):
            return False  # as it was when it was asked, just before

    monkeypatch.setattr(threads, "_queue", NeverEmptyQueue())
    ending = threading.Thread(
        target=threads.shutdown, kwargs={"wait": False, "cancel_futures": True}, daemon=True
    )
    ending.start()
    ending.join(20)
    assert not ending.is_alive()


def test_a_thread_that_hangs_does_not_block_the_shutdown(threads, monkeypatch):
    monkeypatch.setattr(event_loop, "_EXECUTOR_JOIN_S", 0.01)
    release = threading.Event()
    hanging = threads.submit(release.wait, 20)
    threads.shutdown()
    assert not hanging.done()
    release.set()
    assert hanging.result(20)


def test_a_loop_has_daemon_threads_for_blocking_work():
    async def main():
        thread = await asyncio.to_thread(threading.current_thread)
        assert thread.daemon
        assert thread.name.startswith("asyncio_")

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


@on_loop
async def test_a_task_that_refuses_to_end_is_abandoned_and_named(monkeypatch, caplog):
    monkeypatch.setattr(event_loop, "_CANCEL_TIMEOUT_S", 0.01)
    released = asyncio.Event()

    async def refuses():
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def obeys():
        await asyncio.Event().wait()

    refusing, obeying = asyncio.ensure_future(refuses()), asyncio.ensure_future(obeys())
    await asyncio.sleep(0)
    await end_tasks()
    assert obeying.cancelled()
    assert not refusing.done()
    assert refusing not in asyncio.all_tasks(), "who closes the loop would wait for it"
    released.set()
    await refusing
    assert "refuses" in caplog.text


def test_a_thread_with_a_loop_ends_with_its_tasks():
    thread = LoopThread()
    asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), thread.loop)
    thread.close()
    assert not thread._thread.is_alive()


def test_an_error_does_not_keep_the_data_of_its_coroutine():
    class Data:
        pass

    async def fail(data):
        raise ValueError("wrong")

    with without_gc(), contextlib.closing(LoopThread()) as thread:
        data = Data()
        kept = weakref.ref(data)
        with contextlib.suppress(ValueError):
            thread.run(fail(data))
        del data
        wait_until(lambda: kept() is None)


HANGS = """
import asyncio, threading
from unittest import mock
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.system import event_loop

mock.patch.object(event_loop, "_EXECUTOR_JOIN_S", 0.1).start()  # what there is to wait for,
mock.patch.object(event_loop, "_CANCEL_TIMEOUT_S", 0.1).start()  # never comes


class Hangs(Op):
    async def init_op(self):
        self.refusing = asyncio.ensure_future(self.refuse())
        self.beside = asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))
        await asyncio.sleep(0)

    async def refuse(self):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass


server = PipelineServer()
server.set_response_op(ResponseOp(Hangs("hangs", RequestOp())))
server.prepare_server(yml_dict={"rpc_port": 0})
with server:
    pass
print("over")
"""


def test_user_code_that_never_ends_does_not_keep_the_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "over\n")
