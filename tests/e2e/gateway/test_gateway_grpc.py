"""gRPC at the real gateway, seen from outside: copies, a killed gateway, a server's successor."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from doubles import wait_until
from served import PATIENCE_S, Served, free_port, no_leftovers

from pipeline.proto.pipeline_service_pb2 import Request, Response

pytestmark = [
    pytest.mark.usefixtures("gateway_binary", "temporary"),
]

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
ALONE = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
SCRIPT = """
import os
import sys

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Who(Op):
    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"pid": str(os.getpid())}, None, ""


server = PipelineServer("svc")
server.set_response_op(ResponseOp([Who("who", [RequestOp()], concurrency=2)]))
server.prepare_server(f"{sys.argv[1]}/config.yml")
server.run_server()
"""
COPIES = {"build_dag_each_worker": True, "worker_num": 2}
EDGES = pytest.mark.parametrize("edge", ["embedded", "gateway"])


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's folder for temporary files; sockets need a short name."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@contextlib.contextmanager
def running(folder: Path, **config: Any) -> Iterator[Served]:
    folder.mkdir(exist_ok=True)
    with no_leftovers():
        served = Served(folder, SCRIPT, {"edge": "gateway", **config})
        try:
            yield served.wait_until_ready()
        finally:
            served.close()


@contextlib.contextmanager
def asking(port: int) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", ALONE) as channel:
        yield channel.unary_unary(METHOD, Request.SerializeToString, Response.FromString)


def pid_of(answer: Response) -> int:
    assert answer.err_no == 0, answer
    return int(answer.value[0])


def gateway_of(server: Served) -> int:
    (result,) = (
        pid
        for pid in server.family
        if b"--grpc-listen-fd" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    )
    return result


def test_copies_take_turns_at_the_calls_of_one_channel(tmp_path):
    with running(tmp_path, **COPIES) as server, asking(server.rpc_port) as call:
        seen: set[int] = set()

        def both_answer() -> bool:
            seen.add(pid_of(call(Request(), timeout=PATIENCE_S)))
            return len(seen) == 2

        wait_until(both_answer, PATIENCE_S)


def test_grpc_alone_needs_no_http(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    port = free_port()
    with no_leftovers():
        server = Served(folder, SCRIPT, {"edge": "gateway", "rpc_port": port, "http_port": None})
        try:
            with asking(port) as call:
                answer = call(Request(), timeout=PATIENCE_S, wait_for_ready=True)
                assert pid_of(answer) == server.process.pid
        finally:
            server.close()


def test_a_killed_gateway_is_replaced_and_channels_continue(tmp_path):
    with running(tmp_path) as server, asking(server.rpc_port) as call:
        call(Request(), timeout=PATIENCE_S)
        killed = gateway_of(server)
        os.kill(killed, signal.SIGKILL)
        answered = [False]

        def comes_back() -> bool:
            with contextlib.suppress(grpc.RpcError):
                answered[0] = pid_of(call(Request(), timeout=PATIENCE_S, wait_for_ready=True)) > 0
            return answered[0]

        wait_until(comes_back, PATIENCE_S)
        assert gateway_of(server) != killed


@EDGES
def test_a_client_with_retries_does_not_notice_a_restart(tmp_path, edge):
    """The next server listens beside the one that stops: what fails of it is safe to repeat."""
    port, http_port = free_port(), free_port()
    config = {"edge": edge, "rpc_port": port, "http_port": http_port, "reuse_port": True}
    codes: set[grpc.StatusCode] = set()  # of calls that failed
    repeated: list[str] = []  # of each request that was repeated, why first
    pids: set[int] = set()
    done = threading.Event()

    def callers() -> None:
        with asking(port) as call:
            was_repeated = False
            while was_repeated or not done.is_set():
                try:
                    answer = call(Request(), timeout=PATIENCE_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    codes.add(error.code())
                    repeated.extend([] if was_repeated else [str(error.details())])
                    was_repeated = True  # until the channel has noticed that its server leaves
                else:
                    was_repeated = False
                    if answer.err_no != 3001:
                        pids.add(pid_of(answer))

    with running(tmp_path / "first", **config) as first:
        threads = [threading.Thread(target=callers, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(pids) == 1)
            with running(tmp_path / "second", **config) as second:
                first.process.send_signal(signal.SIGTERM)
                assert first.outcome()[0] == 0
                wait_until(lambda: second.process.pid in pids, PATIENCE_S)
                done.set()
                for thread in threads:
                    thread.join()
        finally:
            done.set()
    assert pids == {first.process.pid, second.process.pid}
    assert codes <= {grpc.StatusCode.UNAVAILABLE}
    assert len(repeated) <= len(threads), repeated
