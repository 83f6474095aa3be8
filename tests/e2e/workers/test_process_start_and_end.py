"""Servers with process workers: how they start and end, and where a script may run."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from doubles import answers, client_of, server_for, wait_until
from served import (
    PATIENCE_S,
    ServedWithClient,
    children,
    environment,
    is_open,
    stat_of,
    without_log,
)

from pipeline import AsyncPipelineClient, Op, RequestOp
from pipeline.errors import InitError

PROCESSES = {"is_thread_op": False}


# Start and end --------------------------------------------------------------------------------

SMALL = '''
import argparse
import os
import pathlib
import time

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--init", default="")
args = parser.parse_args()
print("the script is loaded")


def hold(name):
    """Say that we are here, and stay until we are released."""
    entered = args.folder / f"{name}.entering"
    entered.write_text(str(os.getpid()))
    entered.rename(args.folder / f"{name}.entered")
    while not (args.folder / f"{name}.released").exists():
        time.sleep(0.002)


class Small(Op):
    def init_op(self):
        print(f"worker {self.concurrency_idx} begins")
        if self.concurrency_idx == 1:
            if args.init == "raise":
                raise FileNotFoundError("small.vocab")
            elif args.init == "exit":
                os._exit(7)
            elif args.init == "hold":
                hold("init")

    def preprocess(self, input_dicts):
        ((_, asked),) = input_dicts.items()
        name = asked["small.preprocess"].removeprefix("hold ")
        print("holding a request")
        hold(name)
        return {"pid": str(os.getpid())}


small = Small(name="small", input_ops=[RequestOp()])
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[small]))
server.prepare_server(str(args.folder / "config.yml"))
server.run_server()
print("run_server returned")
'''


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedWithClient]]:
    """Starts the small script: `serve(*arguments, **config of its Op)`."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **op: Any) -> ServedWithClient:
            config = {"dag": PROCESSES, "op": {"small": op}, "stop_grace_period": 600_000}
            served = ServedWithClient(tmp_path, SMALL, config, *arguments)
            stack.callback(served.close)
            return served

        yield start


@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGTERM, os.kill, id="kill"),
        pytest.param(signal.SIGTERM, os.killpg, id="service manager"),
        pytest.param(signal.SIGINT, os.killpg, id="ctrl-c"),
    ],
)
def test_a_signal_lets_requests_in_workers_finish_and_leaves_nothing(serve, number, send):
    served = serve(concurrency=2).wait_until_ready()
    with served.held("small.preprocess", count=2) as calls:
        send(served.process.pid, number)
        wait_until(lambda: not is_open(served.http_port))
        assert served.process.poll() is None
        assert not any(call.done() for call in calls.values())
    for pid, call in calls.items():
        assert answers(call.result(PATIENCE_S)) == {"pid": str(pid)}
    assert served.ends() == 0
    assert served.family == set()
    out = served.text("stdout")
    lines = [
        "holding a request",
        "holding a request",
        "run_server returned",
        "the script is loaded",
        "worker 0 begins",
        "worker 1 begins",
    ]
    assert sorted(out.splitlines()) == lines, out
    assert without_log(served.text("stderr")).splitlines()[1:] == []


def test_a_second_signal_ends_workers_that_are_busy(serve):
    served = serve(concurrency=2).wait_until_ready()
    with served.held("small.preprocess", count=2) as calls:
        os.kill(served.process.pid, signal.SIGTERM)
        wait_until(lambda: not is_open(served.http_port))
        os.kill(served.process.pid, signal.SIGTERM)
        for call in calls.values():
            assert call.result(PATIENCE_S).err_no == 3001
        assert served.ends() == 0
        assert served.family == set()


def test_all_processes_of_a_killed_server_end(serve):
    served = serve(concurrency=3).wait_until_ready()
    with served.held("small.preprocess", count=2) as calls:
        family = served.family
        assert set(calls) < family
        assert len(family) >= 4
        served.process.kill()
        assert served.ends() == -signal.SIGKILL
        wait_until(lambda: not served.family)
        wait_until(lambda: {stat_of(pid)[0] for pid in family} <= {"X", "Z"})


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("raise", ["small.vocab", 'raise FileNotFoundError("small.vocab")', "web_server.py"]),
        ("exit", ["exit code 7"]),
    ],
)
def test_one_worker_that_fails_to_start_ends_the_server_with_the_reason(serve, how, texts):
    served = serve("--init", how, concurrency=3)
    assert served.ends() == 1
    assert served.family == set()
    error = served.text("stderr")
    assert "Op 'small' failed to start" in error
    assert [text for text in texts if text not in error] == []
    assert "is ready" not in error
    assert "run_server returned" not in served.text("stdout")


def test_a_signal_while_a_worker_is_initialised_ends_all(serve):
    served = serve("--init", "hold", concurrency=2)
    served.wait_until_held("init")
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.ends() == 0
    assert served.family == set()


# Ways to run a script -------------------------------------------------------------------------

# It asks itself, and prints the answer.
ALONE = """
import json
import os
import threading

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp

with open("imports", "a") as imports:
    imports.write("once\\n")

os.register_at_fork(before=lambda: open("forks", "a").write(f"{threading.active_count()}\\n"))
factor = 3


class Scale(Op):
    def init_op(self):
        self.summand = 4

    def preprocess(self, input_dicts):
        number = int(input_dicts["@DAGExecutor"]["x"])
        return {
            "y": str(factor * number + self.summand + self.late(number)),
            "pid": str(os.getpid()),
            "made": "here",
            "by": lambda: os.getpid(),
        }


class Tell(Op):
    def preprocess(self, input_dicts):
        answer = dict(input_dicts["scale"])
        return {**answer, "by": str(answer["by"]()), "idx": str(self.concurrency_idx)}


scale = Scale(name="scale", input_ops=[RequestOp()])
tell = Tell(name="tell", input_ops=[scale])
scale.late = lambda number: 100 * factor + number
if "broken" in os.environ:
    scale.late = (number for number in range(3))
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[tell]))
server.prepare_server(yml_dict=json.loads(os.environ["config"]))
with server:
    with PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        response = client.predict({"x": "5"}, timeout=60)
        response.raise_for_error()
        answer = dict(zip(response.key, response.value))
print("ANSWER", json.dumps({**answer, "server": str(os.getpid())}))
"""


def run_alone(
    folder: Path, arguments: list[str], variables: Mapping[str, str] = {}, **dag: Any
) -> subprocess.CompletedProcess[str]:
    """Run ALONE, which is in script.py too, with `python *arguments`."""
    config = {"rpc_port": 0, "dag": {**PROCESSES, **dag}}
    (folder / "script.py").write_text(ALONE)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(config=json.dumps(config), **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def check_alone(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    answer = json.loads(line.removeprefix("ANSWER "))
    assert (answer["y"], answer["made"], answer["idx"]) == ("324", "here", "0")
    assert len({answer["pid"], answer["by"], answer["server"]}) == 3, "three processes"
    assert (folder / "imports").read_text() == "once\n", "no process runs the script again"


def test_a_script_may_be_on_the_command_line(tmp_path):
    done = run_alone(tmp_path, ["-c", ALONE])
    check_alone(tmp_path, done)
    assert without_log(done.stderr) == ""
    assert set((tmp_path / "forks").read_text().split()) == {"1"}, "no thread is forked beside"


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_a_script_may_run_in_ipython(tmp_path):
    variables = {"IPYTHONDIR": str(tmp_path / "ipython")}
    check_alone(tmp_path, run_alone(tmp_path, ["-m", "IPython", "-c", ALONE], variables))


@pytest.mark.parametrize("arguments", [["script.py"], ["-c", ALONE]], ids=["file", "-c"])
def test_spawned_workers_need_no_guard_either(tmp_path, arguments):
    done = run_alone(tmp_path, arguments, start_method="spawn")
    check_alone(tmp_path, done)
    assert without_log(done.stderr) == ""


def test_an_object_that_cannot_be_spawned_is_named_with_advice(tmp_path):
    done = run_alone(tmp_path, ["script.py"], {"broken": "yes"}, start_method="spawn")
    assert done.returncode == 1
    assert "InitError" in done.stderr
    assert "start_method" in done.stderr
    assert "scale" in done.stderr


# In this process ------------------------------------------------------------------------------


class Where(Op):
    """Says in which process each of its stages ran, and fails where the test asks for it."""

    fails_in_worker: int | None = None

    def init_op(self):
        if self.concurrency_idx == self.fails_in_worker is not None:
            raise FileNotFoundError("where.vocab")
        self.set_up_in = os.getpid()

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        print(f"{self.name} prints")
        return {**answer, self.name: str(self.set_up_in)}, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        assert fetch_data[self.name] == str(os.getpid())
        return fetch_data, None, ""


def two_wheres() -> Op:
    return Where(name="b", input_ops=[Where(name="a", input_ops=[RequestOp()])])


def test_servers_run_in_a_test_one_after_the_other_and_at_once(open_files, capfd):
    config = {"dag": PROCESSES, "op": {"a": {"concurrency": 2}}}
    with server_for(two_wheres(), **config) as server, client_of(server) as client:
        pids = set(answers(client.predict({})).values())
    with (
        server_for(two_wheres(), **config) as first,
        server_for(two_wheres(), **config) as second,
        client_of(first) as client,
        client_of(second) as other,
    ):
        pids |= set(answers(client.predict({})).values())
        pids |= set(answers(other.predict({})).values())
        assert children(), "the fixture sees that they are gone afterwards"
    assert len(pids - {str(os.getpid())}) == 6
    out, _ = capfd.readouterr()
    assert sorted(out.splitlines()) == ["a prints"] * 3 + ["b prints"] * 3


def test_a_server_runs_in_an_event_loop_of_the_user(open_files):
    async def ask() -> dict[str, str]:
        client = AsyncPipelineClient()
        async with server_for(two_wheres(), dag=PROCESSES) as server:
            client.connect([f"127.0.0.1:{server.rpc_port}"])
            try:
                return answers(await client.predict({}, timeout=PATIENCE_S))
            finally:
                await client.close()

    result = asyncio.run(ask())
    assert len({*result.values(), str(os.getpid())}) == 3


def test_a_worker_that_fails_to_start_raises_and_leaves_nothing(open_files):
    last = two_wheres()
    last.fails_in_worker = 2
    server = server_for(last, dag=PROCESSES, op={"b": {"concurrency": 3}})
    before = children()
    with pytest.raises(InitError, match=r"(?s)'b' failed to start: \w+: where\.vocab.*Traceback"):
        server.start()
    assert children() == before
    last.fails_in_worker = None
    with server, client_of(server) as client:
        assert answers(client.predict({})).keys() == {"a", "b"}


def test_a_server_that_cannot_be_spawned_leaves_nothing_in_its_program(open_files):
    op = Where("where", input_ops=[RequestOp()])
    op.late = (number for number in ())
    server = server_for(op, dag={"is_thread_op": False, "start_method": "spawn"})
    with pytest.raises(InitError, match=r"op\.late \(generator\) of <Where 'where'>"):
        server.start()
