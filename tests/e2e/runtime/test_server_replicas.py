"""A server script that runs as several processes: real scripts, real signals, real crashes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from doubles import answers, wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from served import PATIENCE_S, Served, is_open, unique, without_log

from pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"
MIB = 2**20

# Unguarded, as in the field: a thread Op, and one with a worker process in each copy.
SCRIPT = '''
import argparse
import logging
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
    (args.folder / f"{name}.entered").touch()
    while not (args.folder / f"{name}.released").exists():
        time.sleep(0.002)


class Front(Op):
    def init_op(self):
        if args.init == "raise":
            raise FileNotFoundError("front.vocab")

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, asked),) = input_dicts.items()
        if "log" in asked:
            logging.getLogger("pipeline.of_user").warning("front logs %s", asked["log"])
        found = {"copy": str(os.getpid()), "data_id": str(data_id)}
        return {**asked, **found}, False, None, ""


class Work(Op):
    def init_op(self):
        if args.init == "hold":
            hold("init")
        if (args.folder / "crash").exists():
            os._exit(3)

    def preprocess(self, input_dicts):
        ((_, asked),) = input_dicts.items()
        if "hold" in asked:
            hold(asked["hold"])
        if "log" in asked:
            logging.getLogger("pipeline.of_user").warning("work logs %s", asked["log"])
        blob = asked.pop("blob", "")
        return {**asked, "worker": str(os.getpid()), "bytes": str(len(blob))}


front = Front(name="front", input_ops=[RequestOp()])
work = Work(name="work", input_ops=[front])
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[work]))
server.prepare_server(str(args.folder / "config.yml"))
server.run_server()
print("run_server returned")
'''


# The view from outside -----------------------------------------------------------------------


class Copy:
    """A gRPC channel and an HTTP connection that lead to the same copy."""

    def __init__(self, channel: grpc.Channel, http: HTTPConnection | None = None) -> None:
        self._http = http
        self._stub = pipeline_service_pb2_grpc.PipelineServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    def send(self, **pairs: str) -> Future[Any]:
        request = pipeline_service_pb2.Request(key=list(pairs), value=list(pairs.values()))
        future: Future[Any] = self._stub.inference.future(request, timeout=PATIENCE_S)
        return future

    def get(self, **pairs: str) -> dict[str, str]:
        return answers(self.send(**pairs).result())

    def post(self, **pairs: str) -> tuple[int, Any]:
        return post(self._http, **pairs)

    def health(self) -> tuple[int, set[str]]:
        """(status of /health/ready, what the gRPC health service says)"""
        self._http.request("GET", "/health/ready")
        response = self._http.getresponse()
        response.read()
        names = ("", SERVICE)
        asked = [self._health.Check(health_pb2.HealthCheckRequest(service=n)) for n in names]
        states = health_pb2.HealthCheckResponse.ServingStatus
        return response.status, {states.Name(found.status) for found in asked}


def post(http: HTTPConnection, **pairs: str) -> tuple[int, Any]:
    """(status, answer) of a request on a connection that is kept."""
    body = json.dumps({"key": list(pairs), "value": list(pairs.values())})
    http.request("POST", "/svc/prediction", body)
    response = http.getresponse()
    return response.status, json.loads(response.read())


ALL_WELL = (200, {"SERVING"})
NOT_WELL = (503, {"NOT_SERVING"})


class ServedCopies(Served):
    """The script, in two copies unless `config` says otherwise."""

    def __init__(self, folder: Path, *arguments: str, **config: Any) -> None:
        settings = {
            "build_dag_each_worker": True,
            "worker_num": 2,
            "op": {"work": {"workers": "process"}},
            **config,
        }
        super().__init__(folder, SCRIPT, settings, *arguments)

    def wait_until_ready(self) -> Self:
        super().wait_until_ready()
        says = f"HTTP on port {self.http_port}, 2 copies"
        assert says in self.text("stderr"), self.text("stderr")
        return self

    @contextlib.contextmanager
    def copies(self) -> Iterator[dict[int, Copy]]:
        """By pid: the two copies, with connections to each."""
        with contextlib.ExitStack() as stack:
            channels: dict[int, grpc.Channel] = {}
            while len(channels) < 2:
                # Channels to one address would share a connection.
                alone = [("grpc.use_local_subchannel_pool", 1)]
                channel = grpc.insecure_channel(f"127.0.0.1:{self.rpc_port}", alone)
                stack.enter_context(contextlib.closing(channel))
                channels[int(Copy(channel).get()["copy"])] = channel
            https: dict[int, HTTPConnection] = {}
            while len(https) < 2:
                http = HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)
                stack.enter_context(contextlib.closing(http))
                _, answer = post(http)
                https[int(answer["value"][answer["key"].index("copy")])] = http
            yield {pid: Copy(channels[pid], https[pid]) for pid in channels}

    @contextlib.contextmanager
    def held(self, *copies: Copy) -> Iterator[list[Future[Any]]]:
        """A call to each of the copies, held by its worker until the block ends."""
        names = [next(unique) for _ in copies]
        calls = [copy.send(hold=name) for copy, name in zip(copies, names, strict=True)]
        try:
            for name in names:
                self.wait_until_held(name)
            yield calls
        finally:
            for name in names:
                self.release(name)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedCopies]]:
    """Starts the script: `serve(*arguments, **config)`."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **config: Any) -> ServedCopies:
            served = ServedCopies(tmp_path, *arguments, **config)
            stack.callback(served.close)
            return served

        yield start


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCopies]:
    """A server that the tests share: each leaves it ready, with two copies."""
    settings = {"max_message_bytes": 6 * MIB, "op": {"work": {"workers": "process"}, "walk": {}}}
    served = ServedCopies(tmp_path_factory.mktemp("copies"), **settings)
    try:
        yield served.wait_until_ready()
    finally:
        served.close()


# Serving --------------------------------------------------------------------------------------


def test_both_replicas_answer_over_grpc_and_http_with_their_own_workers(served):
    with served.copies() as copies:
        results = {pid: copy.get() for pid, copy in copies.items()}
        for pid, answer in results.items():
            assert int(answer["worker"]) in served.descendants_of(pid)
            assert pid in served.descendants_of(served.process.pid)
            status, over_http = copies[pid].post()
            assert (status, over_http["err_no"]) == (200, 0)
            again = dict(zip(over_http["key"], over_http["value"], strict=True))
            assert int(again["data_id"]) == int(answer["data_id"]) + 2
            assert (again["copy"], again["worker"]) == (str(pid), answer["worker"])
        assert {int(answer["data_id"]) % 2 for answer in results.values()} == {0, 1}


def test_messages_may_be_as_large_as_is_configured(served):
    with served.copies() as copies:
        for copy in copies.values():
            fits, too_large = "x" * 5 * MIB, "x" * 7 * MIB
            assert copy.get(blob=fits)["bytes"] == str(5 * MIB)
            status, answer = copy.post(blob=fits)
            assert (status, answer["value"][-1]) == (200, str(5 * MIB))
            with pytest.raises(grpc.RpcError) as refusal:
                copy.get(blob=too_large)
            assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert copy.post(blob=too_large)[0] == 413


def test_all_lines_are_in_one_file_that_the_server_writes(served):
    with served.copies() as copies:
        marks = {pid: next(unique) for pid in copies}
        workers = {pid: copy.get(log=marks[pid])["worker"] for pid, copy in copies.items()}
        for pid, mark in marks.items():
            for line in (
                f"[pid {pid}] front logs {mark}",
                f"[pid {workers[pid]}] work logs {mark}",
            ):
                served.wait_for(lambda line=line: served.log.count(f" {line}\n") == 1)
                assert served.log.count(line) == 1
    assert served.log.count("op.walk") == 1, "what the configuration has odd is said once"
    files = served.folder / "PipelineServingLogs"
    writers = {
        pid
        for pid in served.family
        for fd in Path(f"/proc/{pid}/fd").iterdir()
        if Path(os.path.realpath(fd)).parent == files
    }
    assert writers == {served.process.pid}


# Health ---------------------------------------------------------------------------------------


def test_a_crash_loop_in_one_replica_is_reported_by_all_until_its_end(served):
    with served.copies() as copies:
        assert [copy.health() for copy in copies.values()] == [ALL_WELL, ALL_WELL]
        worker = int(next(iter(copies.values())).get()["worker"])
        crash = served.folder / "crash"
        crash.touch()
        os.kill(worker, signal.SIGKILL)
        served.wait_for(lambda: all(copy.health() == NOT_WELL for copy in copies.values()))
        crash.unlink()
        ill = next(iter(copies.values()))
        served.wait_for(lambda: ill.send().result().err_no == 0)  # a worker finishes a batch
        served.wait_for(lambda: all(copy.health() == ALL_WELL for copy in copies.values()))


# Ends -----------------------------------------------------------------------------------------


def test_a_killed_replica_is_replaced_without_effect_on_the_other(served):
    with served.copies() as copies:
        (victim, ill), (neighbour, well) = copies.items()
        own = served.descendants_of(victim)
        assert len(own) == 3, "two zygotes and a worker"
        with served.held(ill, well) as (lost, kept):
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(grpc.RpcError):
                lost.result()
            served.wait_for(lambda: not own & served.family)
            assert not kept.done()
            assert well.health() == ALL_WELL
        assert answers(kept.result())["copy"] == str(neighbour)
        assert well.health() == ALL_WELL
    served.wait_for(lambda: f"(pid {victim}) was killed by SIGKILL" in served.log)
    # Connections that were given to it before it ended are reset.
    served.wait_for(lambda: len(served.family) == 11)
    with served.copies() as copies:
        assert neighbour in copies
        assert [copy.health() for copy in copies.values()] == [ALL_WELL, ALL_WELL]


def test_all_processes_of_a_killed_server_end(serve):
    served = serve().wait_until_ready()
    with served.copies() as copies, served.held(*copies.values()):
        assert len(served.family) == 11, "the server, 2 zygotes, and the copies with 3 each"
        served.process.kill()
        assert served.ends() == -signal.SIGKILL
        wait_until(lambda: not served.family)
    assert not is_open(served.http_port)
    assert not is_open(served.rpc_port)


@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGTERM, os.kill, id="kill"),
        pytest.param(signal.SIGTERM, os.killpg, id="service manager"),
        pytest.param(signal.SIGINT, os.killpg, id="ctrl-c"),
    ],
)
def test_a_signal_lets_requests_in_all_replicas_finish_and_leaves_nothing(serve, number, send):
    served = serve(stop_grace_period=600_000).wait_until_ready()
    with served.copies() as copies:
        with served.held(*copies.values()) as calls:
            send(served.process.pid, number)
            wait_until(lambda: not is_open(served.http_port))
            assert served.process.poll() is None
            assert not any(call.done() for call in calls)
        assert [int(answers(call.result())["copy"]) for call in calls] == list(copies)
        assert served.ends() == 0
        assert served.family == set()
    lines = ["the script is loaded", "run_server returned"]
    assert served.text("stdout").splitlines() == lines, "each is printed once"
    assert without_log(served.text("stderr")).splitlines()[1:] == []


def test_a_second_signal_answers_the_rest_at_once(serve):
    served = serve(stop_grace_period=600_000).wait_until_ready()
    with served.copies() as copies, served.held(*copies.values()) as calls:
        os.kill(served.process.pid, signal.SIGTERM)
        wait_until(lambda: not is_open(served.http_port))
        os.kill(served.process.pid, signal.SIGTERM)
        assert [call.result().err_no for call in calls] == [3001, 3001]
    assert served.ends() == 0
    assert served.family == set()


def test_a_signal_while_the_copies_start_ends_them(serve):
    served = serve("--init", "hold")
    served.wait_until_held("init")
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.ends() == 0
    assert served.family == set()
    assert "is ready" not in served.text("stderr")


def test_a_replica_that_fails_to_start_ends_the_server_with_the_reason(serve):
    served = serve("--init", "raise")
    assert served.ends() == 1
    assert served.family == set()
    error = served.text("stderr")
    assert "InitError: Op 'front' failed to start" in error
    assert 'raise FileNotFoundError("front.vocab")' in error
    assert "is ready" not in error
    assert "run_server returned" not in served.text("stdout")


def test_a_port_in_use_ends_the_server_with_its_name(serve):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        served = serve(http_port=port)
        assert served.ends() == 1
    assert f"PortInUseError: http_port: cannot listen on 127.0.0.1:{port}" in served.text("stderr")
    assert served.family == set()
