"""Servers behind the real gateway, seen from outside: used, killed, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import grpc
import pytest
from doubles import wait_until
from served import PATIENCE_S, Served, free_port, is_open, no_leftovers

from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub

pytestmark = [
    pytest.mark.usefixtures("gateway_binary", "temporary"),
]

SCRIPT = """
import os
import sys
import time
from pathlib import Path

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

FOLDER = Path(sys.argv[1])


class Who(Op):
    def init_op(self):
        while (FOLDER / "loading").exists():
            time.sleep(0.002)

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        ((_, pairs),) = input_dicts.items()
        if "hold" in pairs:
            (FOLDER / "hold.entered").touch()
            while not (FOLDER / "hold.released").exists():
                time.sleep(0.002)
        return {"pid": str(os.getpid()), "data_id": str(data_id)}, None, ""


server = PipelineServer("svc")
server.set_response_op(ResponseOp([Who("who", [RequestOp()], concurrency=2)]))
server.prepare_server(f"{FOLDER}/config.yml")
server.run_server()
"""
COPIES = {"build_dag_each_worker": True, "worker_num": 2}
PROCESSES = {"dag": {"is_thread_op": False}}
SPAWN = {"dag": {"start_method": "spawn"}}
ONE_AND_COPIES = pytest.mark.parametrize("config", [{}, COPIES], ids=["one process", "copies"])


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's folder for temporary files; sockets need a short name."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


class Caller:
    """One that keeps its connection, and connects again when it was lost."""

    def __init__(self, server: Served) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            raise

    def pairs(self, **sent: str) -> dict[str, str]:
        """What `Who` answers."""
        status, answer = self.try_to(**sent)
        assert status == 200, answer
        assert answer["err_no"] == 0, answer
        return dict(zip(answer["key"], answer["value"], strict=True))

    def try_to(self, **sent: str) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"key": list(sent), "value": list(sent.values())})
        status, answer = self.ask("POST", "/svc/prediction", body)
        return status, json.loads(answer)

    def pid_if_any(self) -> str | None:
        """Return the process that answers; None: there is no answer, or an error with a reason."""
        with contextlib.suppress(OSError, HTTPException):
            status, answer = self.try_to()
            if status != 503:
                assert answer["err_no"] == 0, answer
                return str(answer["value"][0])
            assert answer["err_no"] == 3001, answer
        return None

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def running(folder: Path, script: str = SCRIPT, **config: Any) -> Iterator[tuple[Served, Caller]]:
    with no_leftovers():
        served = Served(folder, script, {"http_server": "gateway", **config})
        try:
            served.wait_until_ready()
            with contextlib.closing(Caller(served)) as caller:
                yield served, caller
        finally:
            served.close()


def gateways_of(server: Served) -> set[int]:
    collected = set()
    for pid in server.family:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--listen-fd" in command:
                collected.add(pid)
    return collected


def test_all_paths_are_served_on_the_http_port(tmp_path):
    with running(tmp_path) as (server, caller):
        pids = {caller.pairs()["pid"] for _ in range(3)}
        assert pids == {str(server.process.pid)}
        assert caller.ask("GET", "/v2/health/ready") == (200, b'{"ready":true}')
        status, said = caller.ask("GET", "/v2/models/svc/stats")
        assert json.loads(said)["model_stats"][0]["inference_stats"]["success"]["count"] == 3
        status, page = caller.ask("GET", "/")
        assert (status, page[:15]) == (200, b"<!doctype html>")
        assert caller.ask("GET", "/health/ready")[0] == 200
        assert caller.ask("GET", "/no/such/path")[0] == 404
        status, metrics = caller.ask("GET", "/metrics")
        assert status == 200
        assert b"pipeline_gateway_" in metrics
        assert b"pipeline_requests" in metrics, "and the server's own"


@contextlib.contextmanager
def loading(folder: Path, **config: Any) -> Iterator[Served]:
    """A server that listens, and whose Op is ready when `folder/loading` is gone."""
    (folder / "loading").touch()
    with no_leftovers():
        port = free_port()
        server = Served(folder, SCRIPT, {"http_server": "gateway", **config, "http_port": port})
        try:
            server.http_port = port
            wait_until(lambda: is_open(port), PATIENCE_S)
            yield server
        finally:
            server.close()


@ONE_AND_COPIES
def test_it_is_live_but_not_ready_while_models_are_loaded(tmp_path, config):
    with loading(tmp_path, **config) as server, contextlib.closing(Caller(server)) as caller:
        assert caller.ask("GET", "/health/live")[0] == 200
        assert caller.ask("GET", "/health/ready")[0] == 503
        (tmp_path / "loading").unlink()
        server.wait_until_ready()
        assert caller.ask("GET", "/health/ready")[0] == 200
        caller.pairs()


@ONE_AND_COPIES
def test_a_cancelled_start_leaves_nothing(tmp_path, temporary, config):
    with loading(tmp_path, stop_grace_period=600_000, **config) as server:
        wait_until(lambda: len(gateways_of(server)) == 1)
        with ThreadPoolExecutor(1) as pool, contextlib.closing(Caller(server)) as caller:
            asking = pool.submit(caller.try_to)  # nobody knows whether it comes so far
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not gateways_of(server))  # it was seen before the Op is ready
            (tmp_path / "loading").unlink()
            with contextlib.suppress(OSError, HTTPException):
                assert asking.result(PATIENCE_S)[1]["err_no"] == 3001
        assert server.outcome() == (0, "", "")
        assert server.family == set()
        assert os.listdir(temporary) == []


def test_a_deadline_is_the_servers_to_answer(tmp_path):
    with running(tmp_path) as (server, caller):
        body = json.dumps({"key": ["hold"], "value": ["x"]})
        status, said = caller.ask("POST", "/svc/m", body, **{"Grpc-Timeout": "100m"})
        assert (status, json.loads(said)["err_no"]) == (200, 6000)
        server.release("hold")


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 1),
        (PROCESSES, 1),
        (COPIES, 2),
        ({**COPIES, **PROCESSES}, 2),
        ({**COPIES, **SPAWN}, 2),
    ],
    ids=["threads", "processes", "copies", "copies with processes", "spawned copies"],
)
def test_all_replicas_get_requests_and_all_processes_end(tmp_path, temporary, config, count):
    with running(tmp_path, **config) as (server, caller):
        seen: set[str] = set()
        wait_until(lambda: seen.add(caller.pairs()["pid"]) or len(seen) == count)
        server.process.send_signal(signal.SIGTERM)
        assert server.outcome() == (0, "", "")
        assert server.family == set()
        assert os.listdir(temporary) == []


def test_the_requests_of_one_connection_are_shared_out_between_copies(tmp_path):
    with running(tmp_path, **COPIES) as (_, caller):
        seen: set[str] = set()
        wait_until(lambda: seen.add(caller.pairs()["pid"]) or len(seen) == 2)
        in_turn = [caller.pairs()["pid"] for _ in range(6)]
        assert set(in_turn[::2]).isdisjoint(in_turn[1::2])


@ONE_AND_COPIES
def test_a_killed_gateway_restarts(tmp_path, config):
    with running(tmp_path, **config) as (server, caller):
        for _ in range(2):
            (pid,) = gateways_of(server)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: pid not in gateways_of(server))
            with contextlib.suppress(OSError, HTTPException):
                caller.pairs()  # on a connection that is gone; or in the queue of the next gateway
            caller.pairs()
        text = "[gateway] its process was killed by SIGKILL: it is restarted"
        wait_until(lambda: server.log.count(text) == 2)


@ONE_AND_COPIES
def test_the_gateway_ends_when_its_server_is_killed(tmp_path, config):
    with running(tmp_path, **config) as (server, caller):
        caller.pairs()
        server.process.kill()
        wait_until(lambda: server.family == set(), PATIENCE_S)
        wait_until(lambda: not is_open(server.http_port))  # its threads end after its first one


@ONE_AND_COPIES
def test_requests_that_are_inside_are_answered_before_it_ends(tmp_path, config):
    with running(tmp_path, **config) as (server, caller), ThreadPoolExecutor(1) as pool:
        held = pool.submit(caller.pairs, hold="x")
        server.wait_until_held("hold")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_open(server.http_port) and not is_open(server.rpc_port))
        server.release("hold")
        assert int(held.result(PATIENCE_S)["pid"]) > 0
        assert server.outcome() == (0, "", "")


@ONE_AND_COPIES
@pytest.mark.parametrize("again", [False, True], ids=["grace is over", "second signal"])
def test_open_requests_are_answered_at_the_end_of_the_grace_period(tmp_path, config, again):
    grace = 600_000 if again else 0
    with (
        running(tmp_path, stop_grace_period=grace, **config) as (server, caller),
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(caller.try_to, hold="x")
        server.wait_until_held("hold")
        server.process.send_signal(signal.SIGTERM)
        if again:
            wait_until(lambda: not is_open(server.http_port))
            server.process.send_signal(signal.SIGTERM)
        status, answer = held.result(PATIENCE_S)
        assert (status, answer["err_no"]) == (200, 3001)
        server.release("hold")
        assert server.outcome()[0] == 0


def test_a_copy_that_is_killed_is_not_missed(tmp_path):
    with running(tmp_path, **COPIES) as (server, caller):
        first = {caller.pairs()["pid"] for _ in range(4)}
        victim = min(first)
        os.kill(int(victim), signal.SIGKILL)
        seen: set[str | None] = set()
        wait_until(lambda: seen.add(caller.pid_if_any()) or len(seen - {None, victim}) == 2)
        assert first - {victim} < seen, "the other one continued"
        assert len(gateways_of(server)) == 1


@ONE_AND_COPIES
def test_a_stopping_server_is_first_not_ready_and_continues_to_serve(tmp_path, config):
    with running(tmp_path, drain_delay=600_000, **config) as (server, caller):
        caller.pairs()
        server.process.send_signal(signal.SIGTERM)
        wait_until(
            lambda: _status_on_new_connection(server, "GET", "/health/ready") == (503, "close")
        )
        assert _status_on_new_connection(server, "POST", "/svc/prediction") == (200, "close")
        caller.pairs()
        server.process.send_signal(signal.SIGTERM)
        assert server.outcome()[0] == 0


def _status_on_new_connection(server: Served, method: str, path: str) -> tuple[int, str | None]:
    """The status on a new connection, and what becomes of that."""
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, "{}" if method == "POST" else None)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["Connection"]


# Several pipelines --------------------------------------------------------------------------------

PAIR = """
import sys
from pathlib import Path

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Says(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"said": self.name}, False, None, ""


server = PipelineServer("one")
server.set_response_op(ResponseOp(Says("first", [RequestOp()])))
server.add_pipeline("two", ResponseOp(Says("second", [RequestOp()])))
server.prepare_server(f"{sys.argv[1]}/config.yml")
server.run_server()
"""


@ONE_AND_COPIES
def test_each_pipeline_has_its_path_at_the_gateway(tmp_path, config):
    with running(tmp_path, PAIR, edge="gateway", **config) as (server, caller):
        fields = {"one": "first", "two": "second"}
        for name, op in fields.items():
            status, body = caller.ask("POST", f"/{name}/prediction", '{"key": [], "value": []}')
            assert (status, json.loads(body)["value"]) == (200, [op])
            status, body = caller.ask(
                "POST", f"/api/{name}", "{}", **{"content-type": "application/json"}
            )
            assert (status, json.loads(body)) == (200, {"said": op})
            with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
                answer = PipelineServiceStub(channel).inference(Request(name=name), timeout=30)
            assert list(answer.value) == [op]
        _, body = caller.ask("GET", "/v2/models/stats")
        counts = {item["name"]: item["inference_count"] for item in json.loads(body)["model_stats"]}
        assert counts == dict.fromkeys(("one", "first", "two", "second"), 3)
        _, body = caller.ask("GET", "/status.json?pipeline=two")
        assert json.loads(body)["pipeline"]["succeeded"] == 3
        _, body = caller.ask("GET", "/metrics")
        assert b'pipeline="two"' in body
