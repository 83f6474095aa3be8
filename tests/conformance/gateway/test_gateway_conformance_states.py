"""Answers of the gateway while the server behind it is full, slow, starting, gone or frozen.

The other half of the conformance: cases that take a server in a state of its own. Where the state
is one that the server's own HTTP door can have too, the answers are the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance_dialogue import EMPTY, ErrorBody, Expected, answers, ask, fail, run_dialogue, same
from conformance_gateway import PATIENT, Gateway, both_ports, gateway_before, only_grpc
from conformance_server import Holder, conformance_server
from doubles import server_for, wait_until
from raw_http import Connection
from served import Served, free_port, is_open

from pipeline import Op, PipelineServer, RequestOp

ECHO, ECHOED = b'{"value": ["1"]}', answers(value=["1"])
CLOSED, EXPIRED = 3001, 6000
NOT_READY = Expected(503, {"status": "not ready"})
READY = Expected(200, {"status": "ok"})
GET_READY = ask(path="/health/ready", method="GET")
GET_LIVE = ask(path="/health/live", method="GET")
LATE = "(data_id=N log_id=0) the request's deadline passed before it was answered."


def unavailable(part: str, err_no: int = CLOSED, status: int = 503) -> Expected:
    return Expected(status, ErrorBody(err_no, part, is_parsers=True))


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Requests that are still held are released at the end."""
    result = Holder()
    yield result
    result.release()


def ports_of(server: PipelineServer, *gateways: Gateway) -> list[int]:
    assert server.http_port is not None
    return [server.http_port, *(gateway.port for gateway in gateways)]


@contextlib.contextmanager
def three_ports(binary: Path, server: PipelineServer) -> Iterator[list[int]]:
    """The HTTP ports of a running server and of two gateways: one knows only its gRPC port."""
    with (
        gateway_before(binary, both_ports(server), flags=PATIENT) as gateway,
        gateway_before(binary, only_grpc(server), flags=PATIENT) as blind,
    ):
        gateway.wait_until_ready()
        blind.wait_until_ready()
        yield ports_of(server, gateway, blind)


def assert_alike(ports: list[int], *dialogue: Any) -> None:
    """All of them answer so, and with the same words."""
    first, *others = (run_dialogue(port, dialogue) for port in ports)
    assert all(same(first, other) for other in others), (first, others)


@contextlib.contextmanager
def held(port: int, holder: Holder, *headers: str) -> Iterator[Connection]:
    """A connection whose request is being worked on."""
    count = holder.held
    with Connection(port) as connection:
        connection.send(ask(b"", *headers, path="/conf/hold"))
        wait_until(lambda: holder.held > count)
        yield connection


# The server is up ---------------------------------------------------------------------------


def test_a_full_server_refuses_with_retry_after(gateway_binary, holder):
    text = "server is overloaded: 1 requests inside and 0 waiting (queue_size); try again later."
    full = fail(3004, text, 503, retry_after="1")
    settings = {"worker_num": 1, "queue_size": 0}
    with (
        conformance_server(holder, **settings) as server,
        three_ports(gateway_binary, server) as ports,
    ):
        with held(ports[0], holder) as connection:
            assert_alike(ports, ask(ECHO), full)
            holder.release()
            assert connection.answer().status == 200
        assert_alike(ports, ask(ECHO), ECHOED)
    with conformance_server(holder, http_server="gateway", **settings) as server:
        (port,) = ports_of(server)
        with held(port, holder) as connection:
            run_dialogue(port, (ask(ECHO), full))
            holder.release()
            assert connection.answer().status == 200


def test_the_servers_own_deadline_counts_too(gateway_binary, holder):
    with (
        conformance_server(holder, timeout=30) as server,
        three_ports(gateway_binary, server) as ports,
    ):
        for headers in ([], ["Grpc-Timeout: 20S"]):
            assert_alike(ports, ask(b"", *headers, path="/conf/hold"), fail(EXPIRED, LATE))
            holder.release()


def test_the_deadline_of_the_gateway_applies_to_requests_without_one(gateway_binary, holder):
    with (
        conformance_server(holder) as server,
        gateway_before(
            gateway_binary, only_grpc(server), flags=("--timeout", "30ms", *PATIENT)
        ) as gateway,
    ):
        gateway.wait_until_ready()
        run_dialogue(gateway.port, (ask(path="/conf/hold"), fail(EXPIRED, LATE)))
        with held(gateway.port, holder, "Grpc-Timeout: 20S") as connection:
            holder.release()
            assert connection.answer().json["err_no"] == 0


def test_a_disconnect_frees_the_place_of_its_request(gateway_binary, holder):
    with (
        conformance_server(holder) as server,
        gateway_before(gateway_binary, both_ports(server)) as gateway,
    ):
        gateway.wait_until_ready()
        with held(gateway.port, holder):
            assert server.executor.inside == 1
        wait_until(lambda: server.executor.inside == 0)
        holder.release()


# The server comes ---------------------------------------------------------------------------


class Waking(Op):
    """An Op whose `init_op` takes as long as the test likes."""

    def __init__(self, awake: threading.Event) -> None:
        super().__init__("waking", [RequestOp()])
        self._awake = awake

    def init_op(self) -> None:
        self._awake.wait(60)


@contextlib.contextmanager
def starting(awake: threading.Event, rpc_port: int, http_port: int) -> Iterator[PipelineServer]:
    """A server that starts in a thread, until `awake` is set."""
    server = server_for(Waking(awake), name="conf", rpc_port=rpc_port, http_port=http_port)
    thread = threading.Thread(target=server.start)
    thread.start()
    try:
        yield server
    finally:
        awake.set()
        thread.join()
        server.stop()


@pytest.mark.parametrize("knows_http", [True, False])
def test_while_the_server_starts_requests_wait_for_it(gateway_binary, knows_http):
    awake, rpc_port, http_port = threading.Event(), free_port(), free_port()
    backend = f"127.0.0.1:{rpc_port}" + f"/{http_port}" * knows_http
    pair = b'{"key": ["a"], "value": ["1"]}'
    with gateway_before(gateway_binary, backend) as gateway:
        run_dialogue(gateway.port, (GET_LIVE, READY, GET_READY, NOT_READY))
        with starting(awake, rpc_port, http_port):
            wait_until(lambda: answers_of(gateway, pair) is not None)
            run_dialogue(gateway.port, (GET_LIVE, READY, GET_READY, NOT_READY))
            with Connection(gateway.port) as connection:
                connection.send(ask(pair))
                awake.set()
                assert connection.answer().json["value"] == ["1"]
            wait_until(lambda: gateway.status_of("/health/ready") == 200)


def answers_of(gateway: Gateway, body: bytes) -> Any:
    """None as long as a request is refused for want of a server; a held one has no answer yet."""
    with Connection(gateway.port) as connection:
        connection.send(ask(body, "Grpc-Timeout: 100m"))
        answer = connection.answer()
        return None if answer.status == 503 else answer


# The server goes ----------------------------------------------------------------------------


def test_a_draining_server_answers_its_started_requests(gateway_binary, holder):
    server = conformance_server(holder).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        gateway = stack.enter_context(gateway_before(gateway_binary, both_ports(server)))
        gateway.wait_until_ready()
        connection = stack.enter_context(held(gateway.port, holder))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        wait_until(lambda: gateway.status_of("/health/ready") == 503)
        holder.release()
        assert connection.answer().json["err_no"] == 0
        stopping.join()
        run_dialogue(
            gateway.port, (ask(ECHO), unavailable(""), GET_READY, NOT_READY, GET_LIVE, READY)
        )


def test_a_server_drains_with_its_own_gateway_in_front(gateway_binary, holder):
    server = conformance_server(holder, http_server="gateway").start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        (port,) = ports_of(server)
        connection = stack.enter_context(held(port, holder))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        wait_until(lambda: not is_open(port))
        holder.release()
        assert connection.answer().json["err_no"] == 0
        stopping.join()


def test_interrupted_requests_get_the_same_error_everywhere(gateway_binary, holder):
    received = []
    for http_server, way in (("embedded", 0), ("embedded", 1), ("embedded", 2), ("gateway", 0)):
        settings = {"stop_grace_period": 0, "http_server": http_server}
        server = conformance_server(holder, **settings).start()
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop)
            ports = stack.enter_context(three_ports(gateway_binary, server)) if way else []
            port = ports[way] if way else ports_of(server)[0]
            connection = stack.enter_context(held(port, holder))
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            answer = connection.answer()
            holder.release()
            stopping.join()
            received.append((answer.status, answer.json))
    assert received[0] == (200, {**EMPTY, "err_no": CLOSED, "err_msg": "dag closed."})
    assert received == [received[0]] * 4


@pytest.mark.parametrize("knows_http", [True, False])
def test_without_a_server_clients_get_an_error_and_are_served_after_its_start(
    gateway_binary, holder, knows_http
):
    rpc_port, http_port = free_port(), free_port()
    backend = f"127.0.0.1:{rpc_port}" + f"/{http_port}" * knows_http
    with gateway_before(gateway_binary, backend) as gateway:
        nobody = (ask(ECHO), unavailable(f"127.0.0.1:{rpc_port}"), GET_READY, NOT_READY)
        run_dialogue(gateway.port, nobody)
        for _ in range(2):
            with conformance_server(holder, rpc_port=rpc_port, http_port=http_port):
                gateway.wait_until_ready()
                run_dialogue(gateway.port, (ask(ECHO), ECHOED, GET_READY, READY))
            wait_until(lambda: gateway.status_of("/health/ready") == 503)
            run_dialogue(gateway.port, nobody)


def test_without_a_server_invalid_requests_are_refused_by_the_gateway(gateway_binary):
    """As far as it can tell: what is wrong with the request is not the server's to say."""
    with gateway_before(gateway_binary, f"127.0.0.1:{free_port()}/{free_port()}") as gateway:
        run_dialogue(gateway.port, (ask(method="GET", path="/conf/echo"), fail(
            3000, "method GET is not allowed here: use POST", 405, allow="POST")))  # fmt: skip
        for path in ("/", "/v2/health/ready", "/a/b/c"):
            run_dialogue(gateway.port, (ask(method="GET", path=path), unavailable("")))


def test_of_several_servers_the_available_ones_answer(gateway_binary, holder):
    with (
        conformance_server(holder) as one,
        conformance_server(holder) as other,
        gateway_before(
            gateway_binary, both_ports(one), f"127.0.0.1:{free_port()}", only_grpc(other)
        ) as gateway,
    ):
        gateway.wait_until_ready(backends=2)
        run_dialogue(gateway.port, (ask(ECHO), ECHOED) * 20)
        one.stop()
        run_dialogue(gateway.port, (ask(ECHO), ECHOED) * 20)


# The server does not answer -----------------------------------------------------------------

SCRIPT = """
import pathlib, sys, time
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Echo(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        if "hold" in answer:
            pathlib.Path(sys.argv[1], "entered").touch()
            time.sleep(60)
        return answer

server = PipelineServer("conf")
server.set_response_op(ResponseOp([Echo("echo", [RequestOp()])]))
server.prepare_server("config.yml")
server.run_server()
"""
PAIR, PAIRED = b'{"key": ["a"], "value": ["1"]}', answers(key=["a"], value=["1"])


@contextlib.contextmanager
def processes(tmp_path: Path, count: int) -> Iterator[list[Served]]:
    """Servers that are processes of their own."""
    with contextlib.ExitStack() as stack:
        collected = []
        for number in range(count):
            folder = tmp_path / str(number)
            folder.mkdir()
            collected.append(stack.enter_context(contextlib.closing(Served(folder, SCRIPT, {}))))
        yield [served.wait_until_ready() for served in collected]


def address_of(served: Served) -> str:
    return f"127.0.0.1:{served.rpc_port}/{served.http_port}"


def test_a_server_that_is_frozen_is_not_waited_for(gateway_binary, tmp_path):
    late = unavailable("", EXPIRED, 504)
    with (
        processes(tmp_path, 1) as (served,),
        gateway_before(gateway_binary, address_of(served)) as gateway,
    ):
        gateway.wait_until_ready()
        os.kill(served.process.pid, signal.SIGSTOP)
        for body in (PAIR, b"{"):  # the second is for the door to judge
            run_dialogue(gateway.port, (ask(body, "Grpc-Timeout: 50m"), late))
        run_dialogue(gateway.port, (ask(b"", "Grpc-Timeout: 50m", path="/v2", method="GET"), late))
        os.kill(served.process.pid, signal.SIGCONT)
        run_dialogue(gateway.port, (ask(PAIR), PAIRED))


def test_a_request_of_a_dead_server_is_not_sent_to_another(gateway_binary, tmp_path):
    with processes(tmp_path, 2) as servers, contextlib.ExitStack() as stack:
        gateway = stack.enter_context(gateway_before(gateway_binary, *map(address_of, servers)))
        gateway.wait_until_ready(backends=2)
        run_dialogue(gateway.port, (ask(PAIR), PAIRED) * 4)
        connection = stack.enter_context(Connection(gateway.port))
        connection.send(ask(b'{"key": ["hold"], "value": ["1"]}'))
        entered = [served.folder / "entered" for served in servers]
        wait_until(lambda: any(path.exists() for path in entered))
        (dead,) = (served for served in servers if (served.folder / "entered").exists())
        os.kill(dead.process.pid, signal.SIGKILL)
        answer = connection.answer()
        assert (answer.status, answer.json["err_no"]) == (503, CLOSED), answer
        assert sum(path.exists() for path in entered) == 1
        run_dialogue(gateway.port, (ask(PAIR), PAIRED) * 4)
