"""Processes that Ops start: signals to them are theirs alone, and they end with the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import wait_until
from served import PATIENCE_S, ServedWithClient, stat_of

SCRIPT = """
import multiprocessing
import os
import signal
import subprocess
import sys
import time

if sys.argv[2] == "asyncio":
    sys.modules["uvloop"] = None

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

# A shell starts what runs in the background with a SIGINT that is ignored, and children inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
FORK = multiprocessing.get_context("fork")


def stay(is_there=None):
    if is_there:
        is_there.set()
    while True:  # Python sees a signal that comes right before a sleep only after it
        time.sleep(0.1)


def square(x):
    return x * x


def start(how, **options):
    child = multiprocessing.get_context(how).Process(target=stay, **options)
    child.start()
    return child


class Work(Op):
    def preprocess(self, input_dicts):
        how = input_dicts["@DAGExecutor"].get("how", "")
        return {self.name: str(getattr(self, how)() if how else "fine")}

    def pool(self):
        with FORK.Pool(2) as pool:
            return pool.map(square, [2, 3])

    def terminate(self):
        child = start("fork")
        child.terminate()  # at once: it may not have come to Python code yet
        child.join()
        return child.exitcode

    def interrupt(self):
        is_there = FORK.Event()
        child = start("fork", args=(is_there,))
        is_there.wait()
        os.kill(child.pid, signal.SIGINT)
        child.join()
        return child.exitcode

    def leave(self):
        # Before the pool: a thread of the pool forks when a worker of it dies, and what is forked
        # while Popen waits for its program keeps Popen's pipe open, and Popen waiting.
        program = subprocess.Popen(["sleep", "1000"])
        forked = f"{start('fork', daemon=True).pid} {start('fork').pid}"
        self.kept = FORK.Pool(1)
        os.kill(self.kept._pool[0].pid, signal.SIGKILL)  # it may have had the pool's lock
        return f"{forked} {program.pid}"

    def pid(self):
        return os.getpid()


class Both(Op):
    def preprocess(self, input_dicts):
        return {key: text for answer in input_dicts.values() for key, text in answer.items()}


asked = RequestOp()
server = PipelineServer("work")
server.set_response_op(ResponseOp(Both("both", [Work("thread", asked), Work("process", asked)])))
server.prepare_server("config.yml")
server.run_server()
"""
CONFIG = {
    "dag": {"retry": 1},
    "op": {"thread": {"workers": "thread"}, "process": {"workers": "process"}},
}


@pytest.fixture(params=["uvloop", "asyncio"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServedWithClient]:
    run = ServedWithClient(tmp_path, SCRIPT, CONFIG, request.param)
    try:
        yield run.wait_until_ready()
    finally:
        run.close()


def test_a_signal_to_a_child_ends_only_the_child(served: ServedWithClient) -> None:
    pids = served.get({"how": "pid"})
    for how, answer in (
        ("pool", "[4, 9]"),
        ("terminate", str(-signal.SIGTERM)),
        ("interrupt", "1"),  # by KeyboardInterrupt
        ("pool", "[4, 9]"),
        ("", "fine"),
    ):
        assert served.get({"how": how}) == {"thread": answer, "process": answer}
    assert served.get({"how": "pid"}) == pids

    left = {op: list(map(int, text.split())) for op, text in served.get({"how": "leave"}).items()}
    os.kill(int(pids["process"]), signal.SIGKILL)
    wait_until(lambda: have_ended(left["process"][:2]), PATIENCE_S)  # what its main thread forked
    served.process.send_signal(signal.SIGTERM)
    assert served.ends() == 0
    wait_until(lambda: have_ended([*left["thread"], *left["process"]]), PATIENCE_S)
    wait_until(lambda: not served.family, PATIENCE_S)


def have_ended(pids: list[int]) -> bool:
    return all(stat_of(pid)[0] in "XZ" for pid in pids)
