"""Server scripts as users write them, in processes of their own: how they start and end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from doubles import wait_until
from raw_http import Connection, request
from served import Served, free_port, is_open

from pipeline import PipelineClient

# Unguarded at module level, globals and late attributes read inside the Op: as in the field.
SCRIPT = '''
import argparse
import os
import pathlib
import time

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--suffix", default="?")
parser.add_argument("--init", default="")
args = parser.parse_args()


def hold(name):
    """Say that we are here, and stay until we are released."""
    (args.folder / (name + ".entered")).touch()
    while not (args.folder / (name + ".released")).exists():
        time.sleep(0.002)


class Shout(Op):
    def init_op(self):
        if args.init == "hold":
            hold("init")
        elif args.init == "fail":
            raise FileNotFoundError("shout.vocab")
        self.vocabulary = "abc"

    def set_mark(self, mark):
        self.mark = mark

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        if "hold" in answer:
            hold(answer["hold"])
        if "refuse" in answer.get("words", ""):
            raise ValueError("too sad")
        words = answer.get("words", "") + args.suffix + self.mark + self.vocabulary
        return {"prediction": words}, False, None, ""


shout = Shout(name="shout", input_ops=[RequestOp()])
shout.set_mark("!")
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[shout]))
server.prepare_server(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.yml"))
server.run_server()
print("run_server returned")
'''


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts the script: `serve(*arguments, **config)`. What still runs is killed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **config: Any) -> Served:
            served = Served(tmp_path, SCRIPT, config, *arguments, cwd=elsewhere)
            stack.callback(served.close)
            return served

        yield start


@contextlib.contextmanager
def client_at(port: int) -> Iterator[PipelineClient]:
    with PipelineClient() as client:
        client.connect([f"127.0.0.1:{port}"])
        yield client


# Serving ------------------------------------------------------------------------------------


def test_an_unguarded_script_serves_with_its_globals_and_late_attributes(serve):
    served = serve("--suffix", "+")
    rpc_port, http_port = served.wait_until_ready().ports
    with client_at(rpc_port) as client:
        assert client.predict({"words": "hi"}).value == ["hi+!abc"]
    with Connection(http_port) as connection:
        connection.send(request(b'{"key": ["words"], "value": ["hi"]}'))
        assert connection.answer().json["value"] == ["hi+!abc"]
    assert os.listdir(served.folder / "elsewhere") == [], "it writes where SERVING_LOG_PATH says"


CLIENT = """
from pipeline import PipelineClient
import numpy as np

client = PipelineClient()
client.connect(['127.0.0.1:{port}'])

words = 'i am very sad | 0'

futures = []
for i in range(3):
    futures.append(
        client.predict(
            feed_dict={{"words": words}},
            fetch=["prediction"],
            asyn=True))

for f in futures:
    res = f.result()
    if res["ecode"] != 0:
        print(res)
        exit(1)
"""


def test_the_client_of_the_design_document_runs_unchanged(serve):
    rpc_port, _ = serve().wait_until_ready().ports
    script = CLIENT.format(port=rpc_port)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_that_client_sees_an_error_as_its_ecode(serve):
    rpc_port, _ = serve().wait_until_ready().ports
    script = CLIENT.format(port=rpc_port).replace("i am very sad", "refuse")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "too sad" in done.stdout


# Stopping -----------------------------------------------------------------------------------


TWO_WORKERS = {"shout": {"concurrency": 2}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish_and_ends_with_0(serve, number):
    served = serve(op=TWO_WORKERS)
    rpc_port, http_port = served.wait_until_ready().ports
    with (
        client_at(rpc_port) as client,
        Connection(http_port) as idle,
        Connection(http_port) as busy,
    ):
        idle.send(request())
        assert idle.answer().status == 200
        over_grpc = client.predict({"hold": "grpc"}, asyn=True)
        busy.send(request(b'{"key": ["hold"], "value": ["http"]}'))
        served.wait_until_held("grpc")
        served.wait_until_held("http")
        served.process.send_signal(number)
        assert idle.is_at_end(), "a connection without a request is let go"
        wait_until(lambda: not is_open(http_port))
        assert served.process.poll() is None
        served.release("grpc")
        served.release("http")
        assert over_grpc.result(60).value == ["?!abc"]
        assert busy.answer().json["value"] == ["?!abc"]
    assert served.outcome() == (0, "run_server returned\n", "")
    assert not is_open(rpc_port)


def has_arrived(port: int) -> bool:
    """Whether the server at `port` has read everything that was sent to it."""
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        _, local, _, state, queues = line.split()[:5]
        if state == "01" and local.endswith(f":{port:04X}") and not queues.endswith(":00000000"):
            return False
    return True


def test_a_second_signal_cuts_the_grace_period_short(serve):
    served = serve(stop_grace_period=600_000, op=TWO_WORKERS)
    rpc_port, http_port = served.wait_until_ready().ports
    with client_at(rpc_port) as client, Connection(http_port) as connection:
        over_grpc = client.predict({"hold": "grpc"}, asyn=True)
        connection.send(request(b'{"key": ["hold"], "value": ["http"]}'))
        served.wait_until_held("grpc")
        served.wait_until_held("http")
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_open(http_port))
        assert not over_grpc.done()
        served.process.send_signal(signal.SIGTERM)
        assert over_grpc.result(60).err_no == 3001
        assert connection.answer().json["err_no"] == 3001
        served.release("grpc")
        served.release("http")
    assert served.outcome() == (0, "run_server returned\n", "")


def test_user_code_that_hangs_does_not_keep_the_process(serve):
    served = serve(stop_grace_period=50)
    rpc_port, _ = served.wait_until_ready().ports
    with client_at(rpc_port) as client:
        call = client.predict({"hold": "forever"}, asyn=True)
        served.wait_until_held("forever")
        served.process.send_signal(signal.SIGTERM)
        assert call.result(60).err_no == 3001
    assert served.outcome() == (0, "run_server returned\n", "")
    assert "1 workers hang in user code" in served.log


def test_a_signal_while_an_op_is_initialised_ends_the_process(serve):
    http_port = free_port()
    served = serve("--init", "hold", http_port=http_port, stop_grace_period=600_000)
    served.wait_until_held("init")
    with Connection(http_port) as early:
        early.send(request())
        wait_until(lambda: has_arrived(http_port))
        served.process.send_signal(signal.SIGTERM)
        assert early.answer().json["err_no"] == 3001
    assert served.outcome() == (0, "run_server returned\n", "")
    assert "is ready" not in served.log


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_an_exception_of_an_op_is_shown_on_stderr_once_and_then_counted(serve, workers):
    served = serve(op={"shout": {"workers": workers}})
    rpc_port, _ = served.wait_until_ready().ports
    with client_at(rpc_port) as client:
        messages = [client.predict({"words": "refuse"}).err_msg for _ in range(3)]
    served.process.send_signal(signal.SIGTERM)
    assert served.outcome() == (0, "run_server returned\n", "")
    assert all("  Raise_msg: ValueError: too sad  ClassName" in text for text in messages)
    who = r"(\[pid \d+\] )?"
    error = (
        r"\(data_id=\d log_id=0\) \[shout\] preprocess raised ValueError: too sad "
        r"\(web_server\.py:\d+; traceback: .*PipelineServingLogs/pipeline\.log\)"
    )
    first, more = served.shown
    assert re.fullmatch(rf"ERROR {who}{error}", first)
    assert re.fullmatch(rf"ERROR {who}2 more in \d+ s, the last: {error}", more)
    assert served.log.count("  ValueError: too sad\n") == 3


# Failing ------------------------------------------------------------------------------------


def test_an_init_op_that_fails_ends_the_process_with_op_and_traceback(serve):
    status, out, err = serve("--init", "fail").outcome()
    assert (status, out) == (1, "")
    assert "Op 'shout' failed to start: FileNotFoundError: shout.vocab" in err
    assert 'raise FileNotFoundError("shout.vocab")' in err
    assert "web_server.py" in err


@pytest.mark.parametrize("key", ["rpc_port", "http_port"])
def test_a_port_in_use_ends_the_process_and_is_named(serve, key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = serve(**{key: port}).outcome()
    assert (status, out) == (1, "")
    assert re.search(rf"PortInUseError: {key}: cannot listen on .*:{port}: .*in use", err), err


def test_a_wrong_configuration_ends_the_process_with_file_and_line(serve):
    served = serve(worker_num="many")
    status, out, err = served.outcome()
    assert (status, out) == (1, "")
    assert f"{served.folder}/config.yml:3" in err
    assert "worker_num" in err


def test_ports_are_free_again_at_once_after_a_kill(serve):
    ports = {"rpc_port": free_port(), "http_port": free_port()}
    first = serve(**ports)
    first.wait_until_ready()
    with client_at(ports["rpc_port"]) as client, Connection(ports["http_port"]) as connection:
        connection.send(request())
        assert connection.answer().status == 200
        call = client.predict({"hold": "inside"}, asyn=True)
        first.wait_until_held("inside")
        first.process.kill()
        with pytest.raises(grpc.RpcError):
            call.result(60)
        assert first.ends() == -signal.SIGKILL
        assert serve(**ports).wait_until_ready().ports == (ports["rpc_port"], ports["http_port"])
    with Connection(ports["http_port"]) as connection:
        connection.send(request())
        assert connection.answer().status == 200


# Importing ----------------------------------------------------------------------------------

IMPORT = """
import os, sys, threading
import numpy
modules, files = set(sys.modules), os.listdir("/proc/self/fd")
handlers = list(__import__("logging").getLogger().handlers)
{statement}
assert os.listdir("/proc/self/fd") == files
assert threading.active_count() == 1
assert __import__("logging").getLogger().handlers == handlers
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - modules}}))
"""


def imported_by(statement: str) -> set[str]:
    """The top-level modules that `statement` adds to numpy's; it opens and starts nothing."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(statement=statement)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split()) - sys.stdlib_module_names


def test_importing_the_package_imports_nothing_else():
    assert imported_by("import pipeline") == {"pipeline"}


@pytest.mark.parametrize("names", ["Op, RequestOp, ResponseOp", "ProductError"])
def test_modules_for_ops_import_neither_frontends_nor_runtimes(names):
    light = {"pipeline", "google", "ml_dtypes", "msgspec", "numpy", "orjson", "typing_extensions"}
    assert imported_by(f"from pipeline import {names}") <= light
