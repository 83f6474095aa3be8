"""Doors that drain: no call is cut off, and probes get "not ready" first."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from doubles import chain, client_of, http, on_loop, post, server_for, wait_until
from fake_begin import begin_of
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_http import Connection, request

from pipeline.errors import InitError
from pipeline.frontends.grpc import sockets as grpc_sockets
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.listen import bind, check_free, reserve, take_last
from pipeline.proto import pipeline_service_pb2

BODY = {"key": ["path"], "value": ["x"]}
ASKED = request(json.dumps(BODY).encode())
CLOSE = b"connection: close"


# Sockets --------------------------------------------------------------------------------------


def connecting(port: int) -> socket.socket:
    """A connection that the system has made by now, if it makes it at all."""
    caller = socket.socket()
    caller.setblocking(False)
    caller.connect_ex(("127.0.0.1", port))
    return caller


def test_a_descriptor_that_is_anothers_by_now_is_left_alone(monkeypatch):
    listener, others = socket.socket(), socket.socketpair()
    sockets = grpc_sockets.GrpcSockets()
    with sockets.opening():
        listener.bind(("127.0.0.1", 0))
        listener.listen()

    async def closed_meanwhile(sock):
        os.dup2(others[0].fileno(), listener.fileno())

    monkeypatch.setattr(grpc_sockets, "take_last", closed_meanwhile)
    asyncio.run(sockets.stop_listening())
    sockets.forget()
    assert os.fstat(listener.fileno()).st_ino == os.fstat(others[0].fileno()).st_ino
    for sock in (listener, *others):
        sock.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "unix-abstract:pipeline-test-stops"])
def test_accepting_at_a_stopped_listener_finds_no_connection_and_no_error(host):
    """gRPC accepts until no caller is left, and logs an error if its descriptor does not listen."""
    sockets = grpc_sockets.GrpcSockets()
    with sockets.opening():
        listener = bind(host, 0, "rpc_port")
    place = listener.getsockname()
    with listener:
        asyncio.run(sockets.stop_listening())
        sockets.forget()
        with socket.socket(listener.family) as caller, pytest.raises(ConnectionRefusedError):
            caller.connect(place)
        with (
            socket.socket(fileno=os.dup(listener.fileno())) as accepting,
            pytest.raises(BlockingIOError),
        ):
            accepting.accept()


def is_made(caller: socket.socket) -> bool:
    return bool(select.select([], [caller], [], 0)[1])


@on_loop
async def test_a_closing_listener_accepts_established_connections_only():
    with bind("127.0.0.1", 0, "http_port") as listener, connecting(port_of(listener)) as early:
        taking = asyncio.ensure_future(take_last(listener))
        await asyncio.sleep(0)
        assert is_made(early)
        assert not taking.done(), "nobody has taken it"
        with connecting(port_of(listener)) as late:
            assert not is_made(late)
            listener.accept()[0].close()
            await taking
            assert not is_made(late)


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_a_port_is_shared_only_if_all_its_servers_share_it():
    with bind("127.0.0.1", 0, "http_port", is_shared=True) as first:
        port = port_of(first)
        for is_free in (bind, check_free, reserve):
            with pytest.raises(InitError, match=f"http_port: .*{port}"):
                is_free("127.0.0.1", port, "http_port")
        check_free("127.0.0.1", port, "http_port", True)
        with (
            reserve("127.0.0.1", port, "http_port", True),
            bind("127.0.0.1", port, "http_port", True),
        ):
            pass
    with bind("127.0.0.1", 0, "http_port") as alone:
        for is_free in (bind, check_free, reserve):
            with pytest.raises(InitError, match="in use"):
                is_free("127.0.0.1", port_of(alone), "http_port", True)


def test_a_port_is_looked_at_without_listening_there(monkeypatch):
    listened = []
    monkeypatch.setattr(socket.socket, "listen", lambda *_: listened.append(True))
    check_free("127.0.0.1", 0, "rpc_port")
    check_free("127.0.0.1", 0, "rpc_port", True)
    with pytest.raises(InitError, match=r"rpc_port: cannot listen on 192\.0\.2\.1"):
        check_free("192.0.2.1", 0, "rpc_port")
    assert listened == []


# The HTTP door --------------------------------------------------------------------------------


class Door:
    """An HttpFrontend on its own; `holds` keeps its requests until it is set."""

    def __init__(self) -> None:
        self.holds = asyncio.Event()
        self.entered = asyncio.Event()
        self._peers: list[Peer] = []
        self.door = HttpFrontend(begin_of(self._answer), "127.0.0.1", 0, 10_000)

    async def _answer(self, request, timeout_s):
        self.entered.set()
        await self.holds.wait()
        return pipeline_service_pb2.Response()

    async def __aenter__(self) -> Door:
        self.holds.set()
        await self.door.start(is_ready=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.door.stop(0.0)
        for peer in self._peers:
            peer.writer.close()

    async def connect(self, sock: socket.socket | None = None) -> Peer:
        where = {"sock": sock} if sock else {"host": "127.0.0.1", "port": self.door.port}
        self._peers.append(Peer(*await asyncio.open_connection(**where)))
        return self._peers[-1]


class Peer:
    def __init__(self, reader, writer) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, asked: bytes = ASKED) -> bytes:
        """The head of the answer."""
        self.writer.write(asked)
        return await self.answer()

    async def answer(self) -> bytes:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
        size = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await self.reader.readexactly(size)
        return head.lower()

    async def is_over(self) -> bool:
        return await asyncio.wait_for(self.reader.read(1), 30) == b""


@on_loop
async def test_a_draining_frontend_is_not_ready_and_closes_connections_with_their_answers():
    async with Door() as door:
        kept, probe = await door.connect(), await door.connect()
        assert CLOSE not in await kept.ask()
        await door.door.drain()
        head = await probe.ask(b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 503 " in head
        assert CLOSE in head
        for peer in (kept, await door.connect()):
            head = await peer.ask()
            assert b" 200 " in head
            assert CLOSE in head
            assert await peer.is_over()


@on_loop
async def test_requests_that_were_sent_together_are_all_answered_before_the_connection_ends():
    async with Door() as door:
        peer = await door.connect()
        door.holds.clear()
        peer.writer.write(ASKED * 3)
        await asyncio.wait_for(door.entered.wait(), 30)
        await door.door.drain()
        door.holds.set()
        heads = [await peer.answer() for _ in range(3)]
        assert [CLOSE in head for head in heads] == [False, False, True]
        assert await peer.is_over()


@on_loop
async def test_no_established_connection_is_reset_while_draining():
    async with Door() as door:
        kept = await door.connect()
        await kept.ask()
        made = [connecting(door.door.port) for _ in range(50)]
        assert all(map(is_made, made))
        for caller in made:
            caller.send(ASKED)
        kept.writer.write(ASKED)
        await door.door.close(30.0)
        for caller in made:
            head = await (await door.connect(caller)).answer()
            assert b" 200 " in head
            assert CLOSE in head
        head = await kept.answer()
        assert b" 200 " in head
        assert CLOSE in head
        with pytest.raises(ConnectionRefusedError):
            await door.connect()


@on_loop
async def test_an_idle_connection_ends_while_others_are_served():
    async with Door() as door:
        idle, busy = await door.connect(), await door.connect()
        await idle.ask()
        door.entered.clear()
        door.holds.clear()
        busy.writer.write(ASKED)
        await asyncio.wait_for(door.entered.wait(), 30)
        await door.door.close(30.0)
        assert await idle.is_over()
        door.holds.set()
        assert CLOSE in await busy.answer()


# The server -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("grpc_is_up")
def test_a_server_that_drains_is_not_ready_and_serves_on():
    server = server_for(chain("a"), drain_delay=60_000).start()
    with client_of(server) as client, ThreadPoolExecutor() as pool:
        channel = grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}")
        kept = Connection(server.http_port)
        kept.send(ASKED)
        assert "connection" not in kept.answer().headers
        with channel, kept:
            service, thread = server._service, server._thread
            stopping = pool.submit(server.stop)
            wait_until(lambda: http(service, "GET", "/health/ready")[0] == 503)
            assert http(service, "GET", "/v2/health/ready")[0] == 400
            health = health_pb2_grpc.HealthStub(channel)
            Check = health.Check(health_pb2.HealthCheckRequest(), timeout=30)
            assert Check.status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert client.predict({"path": "x"}).err_no == 0
            status, answer = post(service, BODY)
            assert (status, answer["err_no"]) == (200, 0)
            kept.send(ASKED)
            answer = kept.answer()
            assert (answer.json["err_no"], answer.headers["connection"]) == (0, "close")
            assert not stopping.done()
            thread.loop.call_soon_threadsafe(service.cancel_grace)  # as a second signal does
            stopping.result(60)


@pytest.mark.usefixtures("grpc_is_up")
def test_a_second_server_takes_over_the_ports_of_a_stopping_one():
    with server_for(chain("a"), reuse_port=True) as first:
        ports = {"rpc_port": first.rpc_port, "http_port": first.http_port}
        with pytest.raises(InitError, match="in use"):
            server_for(chain("b"), **ports).start()
        with server_for(chain("b"), reuse_port=True, **ports) as second:
            first.stop()
            for _ in range(10):
                assert post(second, BODY)[1]["value"] == ["x>b"]
            with client_of(second) as client:
                assert client.predict({}).value == ["b"]


def test_searching_for_grpcs_sockets_does_not_change_other_sockets():
    """With a default timeout Python makes each socket that it opens, and its twins, not wait."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30.0)
    try:
        with socket.create_server(("127.0.0.1", 0)) as mine:
            os.set_blocking(mine.fileno(), True)
            sockets = grpc_sockets.GrpcSockets()
            with sockets.opening(), socket.create_server(("127.0.0.1", 0)):
                pass
            assert os.get_blocking(mine.fileno())
    finally:
        socket.setdefaulttimeout(before)
