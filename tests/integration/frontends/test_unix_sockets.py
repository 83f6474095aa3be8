"""Doors on Unix sockets, and what a front may say and hear at their gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_begin import begin_of
from garbage import collect
from link_peer import ask_once, link_of
from other_user import AS_ROOT, NOBODY, connects

from pipeline.errors import ErrorCode, InitError, OverloadedError
from pipeline.frontends.grpc.inference import SERVICE, TIMEOUT, pipeline_service
from pipeline.frontends.grpc.server import ERR_NO, GrpcFrontend
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.link.server import LinkFrontend
from pipeline.frontends.listen import bind, check_unix_path, placed, port_of
from pipeline.frontends.registry import InternalFrontends
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.system.event_loop import loop_factory

METHOD = f"/{SERVICE}/inference"
LIMIT = 10_000

pytestmark = pytest.mark.usefixtures("open_files")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: those of pytest are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="doors-") as name:
        yield Path(name)


def answers(text: str) -> Any:
    async def handle(request: Request, timeout_s: float | None = None) -> Response:
        return Response(key=["by", "timeout"], value=[text, str(timeout_s)])

    return handle


def http_door(path: Path, text: str = "it") -> HttpFrontend:
    return HttpFrontend(begin_of(answers(text)), f"unix:{path}", 0, LIMIT)


def link_door(path: Path, text: str = "it") -> LinkFrontend:
    return link_of(begin_of(answers(text)), path)


async def ask_http(path: Path) -> str:
    """Return the name in the answer over HTTP."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"POST /a/b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    wait = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    assert wait.startswith(b"HTTP/1.1 200 OK\r\n"), wait
    return wait.partition(b'"value":["')[2].partition(b'"')[0].decode()


def to(address: str) -> grpc.aio.Channel:
    """A channel with a connection of its own."""
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


async def ask_link(path: Path) -> str:
    """Return the name in the answer over the link."""
    return str((await ask_once(path, Request())).value[0])


def run(test: Any, new_loop: Any = None) -> Any:
    with asyncio.Runner(loop_factory=new_loop or loop_factory()) as runner:
        return runner.run(test)


@contextlib.asynccontextmanager
async def opened(door: Any) -> AsyncIterator[None]:
    await door.start(True)
    try:
        yield
    finally:
        await door.close(0.0)
        await door.stop(0.0)


KINDS = pytest.mark.parametrize(
    ("make", "ask"), [(http_door, ask_http), (link_door, ask_link)], ids=["http", "link"]
)


@KINDS
@pytest.mark.parametrize("name", ["0.sock", "a b%20ü?#&.sock"])
def test_a_door_serves_on_a_unix_socket(folder, make, ask, name):
    async def test():
        door = make(folder / name)
        async with opened(door):
            assert os.listdir(folder) == [name]
            assert stat.S_ISSOCK((folder / name).stat().st_mode)
            assert door.port == 0
            assert await ask(folder / name) == "it"

    run(test())


@KINDS
def test_a_frontend_replaces_the_socket_of_a_killed_one(folder, make, ask):
    path = folder / "0.sock"
    for left in (path, Path(f"{path}~")):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left))

    async def test():
        async with opened(make(path)):
            assert await ask(path) == "it"

    run(test())


@KINDS
def test_a_door_that_closes_leaves_the_socket_of_its_successor(folder, make, ask):
    path = folder / "0.sock"

    async def test():
        async with contextlib.AsyncExitStack() as second:
            async with opened(make(path, "first")):
                assert await ask(path) == "first"
                await second.enter_async_context(opened(make(path, "second")))
                assert await ask(path) == "second"
            assert await ask(path) == "second"

    run(test())


@KINDS
def test_a_path_that_is_too_long_is_an_error_with_advice(folder, make, ask):
    path = folder / ("x" * 100)
    with pytest.raises(InitError, match=r"http_(server|port): the path .* bytes, 107 .*Set TMPDIR"):
        run(make(path).start())


def test_the_longest_path_that_is_allowed_can_be_bound(folder):
    path = f"{folder}/".ljust(106, "x")
    check_unix_path(path, "key")
    with bind(f"unix:{path}", 0, "key") as listener:
        assert port_of(listener) == 0
    with pytest.raises(InitError):
        check_unix_path(path + "x", "key")


def test_a_folder_that_is_not_there_is_an_error(folder):
    with pytest.raises(InitError, match=r"http_port: cannot listen on unix:.*No such file"):
        run(http_door(folder / "none" / "0.sock").start())


def test_a_placed_file_is_replaced_at_the_end_only(folder):
    path = folder / "0.sock"
    path.write_text("old")
    with placed(str(path), "key") as fresh:
        Path(fresh).write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_inner_doors_stay_open_until_they_are_stopped(folder):
    paths = folder / "a", folder / "b"

    async def test():
        doors = InternalFrontends([http_door(paths[0]), link_door(paths[1])])
        await doors.start(True)
        await doors.close(0.0)
        assert (await ask_http(paths[0]), await ask_link(paths[1])) == ("it", "it")
        await doors.stop(0.0)
        with pytest.raises(ConnectionRefusedError):
            await ask_http(paths[0])

    run(test())


@AS_ROOT
def test_inner_doors_are_for_one_user(folder, caplog):
    paths = folder / "a", folder / "b"

    async def test():
        doors = InternalFrontends([http_door(paths[0]), link_door(paths[1])], paths)
        await doors.start(True)
        folder.chmod(0o755)
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
        for path in paths:
            assert await asyncio.to_thread(connects, path) == "PermissionError"
        paths[1].chmod(0o777)
        assert await asyncio.to_thread(connects, paths[1]) in ("heard b''", "ConnectionResetError")
        assert await ask_link(paths[1]) == "it"
        await doors.stop(0.0)

    run(test())
    assert f"it is of user {NOBODY}, and this server of 0" in caplog.text


def test_a_grpc_door_may_be_closed_and_stopped_at_the_same_moment():
    """gRPC dies of two grace periods of a server that end at the same time."""

    async def test():
        door = GrpcFrontend([pipeline_service(begin_of(answers("it")))], "127.0.0.1", 0, LIMIT)
        await door.start(True)
        async with to(f"127.0.0.1:{door.port}") as channel:
            await channel.unary_unary(METHOD, None, Response.FromString)(b"", timeout=30)
        await door.close(0.0)
        await door.stop(0.0)

    for _ in range(20):
        run(test())


@KINDS
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, loop_factory()])
@pytest.mark.parametrize("steps", range(5))
def test_a_frontend_whose_start_was_cancelled_can_be_stopped(
    folder, caplog, make, ask, steps, new_loop
):
    async def test():
        door = make(folder / "0.sock")
        starting = asyncio.ensure_future(door.start(True))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        await door.close(0.0)
        await door.stop(0.0)

    run(test(), new_loop)
    collect()
    assert [record.getMessage() for record in caplog.records] == []


# What a front says and hears ------------------------------------------------------------------


def call(handle: Any, message: bytes = b"", **how: Any) -> Any:
    """Call a door on TCP; the arguments go to every PipelineService."""

    async def test() -> Any:
        door = GrpcFrontend([pipeline_service(begin_of(handle))], "127.0.0.1", 0, LIMIT)
        async with opened(door), to(f"127.0.0.1:{door.port}") as channel:
            return await channel.unary_unary(METHOD, None, Response.FromString)(message, **how)

    return run(test())


def failure_of(handle: Any, message: bytes = b"", **how: Any) -> tuple[Any, dict[str, str], str]:
    """(status, trailing metadata, text)"""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        call(handle, message, timeout=30, **how)
    error = caught.value
    return error.code(), dict(error.trailing_metadata() or ()), error.details() or ""


def timeout_of(timeout_s: float | None, **metadata: str) -> float | None:
    """The time that `handle` is given."""
    said = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    text = call(answers("it"), timeout=timeout_s, metadata=said).value[1]
    return None if text == "None" else float(text)


def test_a_caller_may_give_the_server_less_time_than_the_call():
    assert timeout_of(30.0, pipeline_timeout="100m") == 0.1
    assert timeout_of(None, pipeline_timeout="2S") == 2.0


def test_the_time_of_the_call_counts_if_it_is_shorter():
    assert 0 < timeout_of(20.0, pipeline_timeout="1H") <= 21
    assert timeout_of(None) is None


@pytest.mark.parametrize("text", ["100", "x", "1s", "123456789m"])
def test_a_time_that_cannot_be_read_is_refused(text):
    status, trailing, said = failure_of(answers("it"), metadata=[(TIMEOUT, text)])
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert trailing[ERR_NO] == str(ErrorCode.RPC_PACKAGE_ERROR.value)
    assert f"invalid {TIMEOUT} {text!r}" in said


async def is_full(*_: Any) -> Any:
    raise OverloadedError("no place")


async def is_wrong(*_: Any) -> Any:
    return {}


async def is_broken(*_: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("handle", "message", "status", "err_no"),
    [
        (is_full, b"", grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorCode.OVERLOADED),
        (answers("it"), b"\xff", grpc.StatusCode.INVALID_ARGUMENT, ErrorCode.RPC_PACKAGE_ERROR),
        (is_wrong, b"", grpc.StatusCode.INTERNAL, ErrorCode.RPC_PACKAGE_ERROR),
        (is_broken, b"", grpc.StatusCode.INTERNAL, ErrorCode.UNKNOW),
    ],
    ids=["overloaded", "no request", "no response", "a bug"],
)
def test_a_status_has_our_error_code(handle, message, status, err_no, caplog):
    failure = failure_of(handle, message)
    assert failure[0] == status
    assert failure[1][ERR_NO] == str(err_no.value)
    caplog.clear()  # of a traceback, which holds the call and its server


def test_a_status_of_grpc_itself_has_no_error_code():
    status, trailing, _ = failure_of(answers("it"), b"x" * (LIMIT + 1))
    assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ERR_NO not in trailing
