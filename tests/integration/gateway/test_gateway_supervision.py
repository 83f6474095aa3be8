"""The gateway as a process of the server's, played: started, restarted, drained, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from doubles import chain, client_of, http, post, server_for, wait_until
from fake_gateway import Played
from link_peer import ask_once
from served import PATIENCE_S, Served, free_port, is_open, no_leftovers, stat_of

from pipeline import PipelineClient, PipelineServer
from pipeline.errors import ConfigError, InitError
from pipeline.frontends.link.frames import VERSION
from pipeline.frontends.listen import bind
from pipeline.gateway.binary import VARIABLE
from pipeline.proto.pipeline_service_pb2 import Request

GATEWAY = {"http_server": "gateway"}
TWO = {"build_dag_each_worker": True, "worker_num": 2, **GATEWAY}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's folder for temporary files; sockets need a short name. Nothing is left in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        assert os.listdir(name) == []


@pytest.fixture
def played(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """The binary that is found; its processes are gone afterwards."""
    program = Played(tmp_path / "played")
    monkeypatch.setenv(VARIABLE, str(program.binary))
    yield program
    assert [pid for pid in program.pids if stat_of(pid)[0] not in ("X", "Z")] == []


def server(**config: Any) -> PipelineServer:
    return server_for(chain("a"), **GATEWAY, **config)


def gateway_state(server: PipelineServer) -> dict[str, Any]:
    """What the gateway says of itself."""
    status, _, said = http(server, "GET", "/")
    assert status == 200
    return dict(said)


def arguments_of(server: PipelineServer) -> list[str]:
    return list(gateway_state(server)["arguments"])


def log() -> str:
    return Path(os.environ["SERVING_LOG_PATH"], "PipelineServingLogs/pipeline.log").read_text()


# In this process ------------------------------------------------------------------------------

here = pytest.mark.usefixtures("open_files")


@here
def test_the_gateway_serves_http_on_the_servers_port_and_grpc_is_unchanged(played):
    with server() as running, client_of(running) as client:
        assert gateway_state(running)["pid"] == played.pids[0]
        assert client.predict({"path": "in"})["path"] == "in>a"
        port, rpc_port = running.http_port, running.rpc_port
    assert not is_open(port)
    assert f"[gateway] its process is ready at 127.0.0.1:{port} (pid {played.pids[0]})" in log()
    assert f"is ready: gRPC on port {rpc_port}, HTTP on port {port}" in log()
    assert "WARNING" in next(line for line in log().splitlines() if "it plays" in line)


@here
def test_the_gateway_receives_the_configuration_as_arguments(played):
    config = {
        "max_message_bytes": 12345,
        "timeout": 1500,
        "stop_grace_period": 2500,
        "log": {"request_sample": 7},
    }
    with server(**config) as running:
        parent, *rest = arguments_of(running)
    assert parent == "--parent"
    assert {
        "--max-message-bytes=12345",
        "--timeout=1500ms",
        "--grace=3500ms",  # and a second for answers that are on their way
        "--access-log-sample=7",
        "--backend-metrics",
    } < set(rest)


@here
def test_without_a_deadline_the_gateway_has_no_timeout(played):
    with server() as running:
        assert "--timeout=0ms" in arguments_of(running)


@here
def test_the_backends_are_in_a_private_folder_of_the_server(played, temporary):
    with server(max_message_bytes=100) as running:
        (folder,) = temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert f"--backend=link:{folder}/0.link,{folder}/0.http" in arguments_of(running)
        large = Request(key=["path"], value=["x" * 10_000])  # the gateway has its own limit
        assert asyncio.run(ask_once(folder / "0.link", large)).err_no == 0
        assert b"200 OK" in asyncio.run(get_on(folder / "0.http", "/v2"))
        assert b'"value":["in>a"]' in asyncio.run(post_on(folder / "0.http"))


async def get_on(path: Path, target: str) -> bytes:
    return await talk(path, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


async def post_on(path: Path) -> bytes:
    body = '{"key": ["path"], "value": ["in"]}'
    head = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}"
    return await talk(path, f"POST /svc/m HTTP/1.1\r\n{head}\r\n\r\n{body}")


async def talk(path: Path, text: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(text.encode())
    wait = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    return wait


@here
def test_the_server_is_ready_when_the_gateway_is(played):
    played.shall("be unready")
    port = free_port()
    running = server(rpc_port=port)
    with ThreadPoolExecutor(1) as pool, PipelineClient() as client:
        starting = pool.submit(running.start)
        try:
            wait_until(lambda: is_open(port))
            client.connect([f"127.0.0.1:{port}"])
            assert client.predict({"path": "in"}, timeout=PATIENCE_S)["path"] == "in>a"
            assert not starting.done()
        finally:
            played.shall_not("be unready")
            starting.result(PATIENCE_S)
            running.stop()
    assert log().index("its process is ready") < log().index("server svc is ready")


@here
def test_a_gateway_that_dies_restarts_while_clients_wait(played):
    with server() as running:
        played.shall("be unready")
        for number in (1, 2):
            os.kill(played.pids[-1], signal.SIGKILL)
            wait_until(lambda number=number: len(played.pids) == number + 1)
            with ThreadPoolExecutor(1) as pool:
                asking = pool.submit(gateway_state, running)  # it waits in the socket's queue
                played.shall_not("be unready")
                assert asking.result(PATIENCE_S)["pid"] == played.pids[-1]
            played.shall("be unready")
    assert log().count("its process was killed by SIGKILL: it is restarted") == 2


@here
def test_a_gateway_that_cannot_restart_is_tried_again(played):
    with server() as running:
        played.shall("fail", "not today")
        os.kill(played.pids[0], signal.SIGKILL)
        wait_until(lambda: "(3 times in a row)" in log())
        played.shall_not("fail")
        assert gateway_state(running)["pid"] == played.pids[-1]
    assert "[gateway] not today" in log()


@here
@pytest.mark.parametrize("config", [{}, TWO], ids=["one process", "copies"])
def test_a_gateway_that_does_not_start_gives_the_reason_and_leaves_nothing(
    grpc_rests, played, config
):
    played.shall("fail", "no place to listen")
    running = server_for(chain("a"), **{**GATEWAY, **config})
    with pytest.raises(InitError, match=r"^http_server: gateway: it does not start: no place to l"):
        running.start()
    played.shall_not("fail")
    with running:
        assert gateway_state(running)["pid"] == played.pids[-1]


@here
def test_an_invalid_binary_is_an_error_at_the_start(played):
    played.binary.write_bytes(b"\x7fELF" + bytes(100))
    with pytest.raises(
        InitError, match=r"gateway: it does not start: .*not a program for this machi"
    ):
        server().start()


@here
@pytest.mark.parametrize(
    ("said", "speaks"),
    [
        (f"pipeline-gateway 0.9 (link {VERSION - 1})", f"version {VERSION - 1} of the link"),
        ("pipeline-gateway 0.9", "an older version of the link"),
    ],
)
def test_a_binary_of_another_link_is_an_error_at_the_start(played, said, speaks):
    played.says_its_version(said)
    with pytest.raises(InitError) as refused:
        server().start()
    text = str(refused.value)
    assert text.startswith(f"http_server: gateway: the gateway {played.binary} speaks {speaks}")
    assert f"this server version {VERSION}" in text
    assert "python -m pipeline.gateway.build" in text
    assert played.pids == [], "it was never run"


@here
def test_a_binary_without_memory_is_not_mistaken_for_an_older_one(played):
    played.binary.write_text("#!/bin/sh\necho 'fatal error: out of memory' >&2\nexit 2\n")
    with pytest.raises(InitError, match=r"cannot run here: fatal error: out of memory. Raise the"):
        server().start()


@here
def test_an_error_at_the_start_names_the_key_that_selects_the_gateway(played):
    played.says_its_version(f"pipeline-gateway 0.9 (link {VERSION - 1})")
    with pytest.raises(InitError, match=r"^edge: gateway: the gateway "):
        server_for(chain("a"), edge="gateway", http_server="embedded").start()


@here
def test_a_binary_without_a_version_is_an_error_at_the_start(played, monkeypatch):
    monkeypatch.setattr("pipeline.gateway.binary._ANSWER_TIMEOUT_S", 0.0)
    with pytest.raises(InitError, match=r"gateway: the gateway .* does not say its version"):
        server().start()


@here
def test_without_a_binary_the_server_does_not_start(temporary, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(temporary / "none"))
    with pytest.raises(InitError, match=r"^http_server: gateway: .*pipeline\.gateway\.build"):
        server().start()


@here
def test_a_port_that_is_in_use_is_an_error(played):
    with bind("127.0.0.1", 0, "other") as other:
        port = other.getsockname()[1]
        with pytest.raises(InitError, match=rf"http_port: cannot listen on 127.0.0.1:{port}"):
            server(http_port=port).start()
    assert played.pids == []


@here
@pytest.mark.parametrize(
    ("name", "why"), [("x" * 90, "107 are allowed"), ("a,b", "there is a comma")]
)
def test_a_folder_where_sockets_cannot_be_is_an_error(played, monkeypatch, temporary, name, why):
    folder = temporary / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(InitError, match=rf"^http_server: gateway: .*{why}.* Set TMPDIR to a"):
        server().start()
    folder.rmdir()


def test_a_configuration_without_an_http_port_is_refused():
    with pytest.raises(ConfigError, match="http_server"):
        server(http_port=None)


@here
def test_the_metrics_have_their_port_as_before(played):
    port = free_port()
    dag = {"enable_prometheus": True, "prometheus_port": port}
    with server(dag=dag):
        assert is_open(port)
    assert not is_open(port)


@here
def test_requests_that_are_inside_are_answered_when_the_server_stops(played, temporary):
    played.shall("hold")
    running = server().start()
    port, rpc_port = running.http_port, running.rpc_port
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(post, running, {}, "/hold")
        wait_until(lambda: played.holds)
        stopping = pool.submit(running.stop)
        wait_until(lambda: not is_open(port) and not is_open(rpc_port))
        (folder,) = temporary.iterdir()
        assert b'"value":["in>a"]' in asyncio.run(post_on(folder / "0.http")), "it may still ask"
        played.shall_not("hold")
        assert held.result(PATIENCE_S)[0] == 200
        stopping.result(PATIENCE_S)


@here
def test_a_gateway_that_does_not_end_is_killed(played, monkeypatch):
    monkeypatch.setattr("pipeline.gateway.ingress._END_TIMEOUT_S", 0.0)
    played.shall("be stubborn")
    with server(stop_grace_period=0):
        pass
    assert "[gateway] its process does not end and is killed" in log()


@here
def test_a_server_runs_in_an_event_loop_of_the_user(played):
    async def use() -> dict[str, Any]:
        async with server() as running:
            return await asyncio.to_thread(gateway_state, running)

    assert asyncio.run(use())["pid"] == played.pids[0]


@here
def test_servers_run_one_after_the_other_and_at_once(played):
    first, second = server(), server()
    with first:
        pass
    with first, second:
        assert gateway_state(first)["pid"] != gateway_state(second)["pid"]
    assert len(played.pids) == 3


@here
def test_replicas_have_separate_sockets_and_one_gateway(grpc_rests, played, temporary):
    with server_for(chain("a"), **TWO) as running:
        (folder,) = temporary.iterdir()
        given = [word for word in arguments_of(running) if word.startswith("--backend=")]
        assert given == [f"--backend=link:{folder}/{n}.link,{folder}/{n}.http" for n in (0, 1)]
        for number in (0, 1):
            assert b'"value":["in>a"]' in asyncio.run(post_on(folder / f"{number}.http"))
        port = running.http_port
    assert f"HTTP on port {port}, 2 copies" in log()
    assert len(played.pids) == 1


@here
def test_replicas_answer_the_gateway_until_its_end(grpc_rests, played, temporary):
    played.shall("hold")
    running = server_for(chain("a"), **TWO).start()
    port, rpc_port = running.http_port, running.rpc_port
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(post, running, {}, "/hold")
        wait_until(lambda: played.holds)
        stopping = pool.submit(running.stop)
        # The reserved port does not listen, so it is the copies that have closed theirs.
        wait_until(lambda: not is_open(port) and not is_open(rpc_port))
        (folder,) = temporary.iterdir()
        for number in (0, 1):
            assert b'"value":["in>a"]' in asyncio.run(post_on(folder / f"{number}.http"))
        played.shall_not("hold")
        assert held.result(PATIENCE_S)[0] == 200
        stopping.result(PATIENCE_S)


@here
def test_a_copy_that_is_killed_has_its_socket_again(grpc_rests, played, temporary):
    with server_for(chain("a"), **TWO) as running:
        (folder,) = temporary.iterdir()
        victim = next(iter(running._service._running)).child
        path = folder / f"{victim.number}.http"
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: "was killed by SIGKILL" in log())

        def answers() -> bool:
            with contextlib.suppress(ConnectionError):
                return b'"value":["in>a"]' in asyncio.run(post_on(path))
            return False

        wait_until(answers)
        assert len(played.pids) == 1, "the gateway stays"


# In a process of its own ----------------------------------------------------------------------

SCRIPT = """
import sys

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

server = PipelineServer("svc")
server.set_response_op(ResponseOp([Op("op", [RequestOp()])]))
server.prepare_server(f"{sys.argv[1]}/config.yml")
server.run_server()
"""


@contextlib.contextmanager
def running(folder: Path, **config: Any) -> Iterator[Served]:
    with no_leftovers():
        served = Served(folder, SCRIPT, {**GATEWAY, **config})
        try:
            yield served.wait_until_ready()
        finally:
            served.close()


@pytest.mark.parametrize("config", [{}, TWO], ids=["one process", "copies"])
def test_the_gateway_ends_with_the_server(tmp_path, played, config):
    with running(tmp_path, **config) as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.outcome() == (0, "", "")
        assert served.family == set()


@pytest.mark.parametrize("config", [{}, TWO], ids=["one process", "copies"])
def test_it_ends_with_a_server_that_is_killed(tmp_path, played, temporary, config):
    with running(tmp_path, **config) as served:
        played.shall("be stubborn")
        served.process.kill()
        wait_until(lambda: served.family == set(), PATIENCE_S)
        for left in temporary.rglob("*"):  # by nobody else: who is killed cannot clear away
            assert left.is_dir() or left.is_socket() or left.name == "secret"
    for path in sorted(temporary.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("config", [{}, TWO], ids=["one process", "copies"])
def test_a_second_signal_ends_the_rest_at_once(tmp_path, played, config):
    played.shall("hold")
    with (
        running(tmp_path, stop_grace_period=600_000, **config) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(hold, served)
        wait_until(lambda: played.holds)
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_open(served.http_port))
        served.process.send_signal(signal.SIGTERM)
        assert served.outcome()[0] == 0
        with pytest.raises(ConnectionError):
            held.result(PATIENCE_S)


def hold(served: Served) -> None:
    connection = HTTPConnection("127.0.0.1", served.http_port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/hold", b"{}")
        connection.getresponse()
    finally:
        connection.close()


def test_it_does_not_end_by_a_signal_from_the_keyboard(tmp_path, played):
    with running(tmp_path) as served:
        assert os.getsid(played.pids[0]) != os.getsid(served.process.pid)
        served.process.send_signal(signal.SIGINT)
        assert served.outcome()[0] == 0
