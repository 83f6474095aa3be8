"""Payloads by reference: what a gateway writes to memory and reads there, and when it is free."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import struct
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_begin import begin_of
from link_peer import INFERENCE, SUCCESS, link_of, said_in, until

from pipeline.engine.offload import Offload
from pipeline.errors import DeadlineError
from pipeline.frontends.grpc.server import GrpcCall, GrpcService
from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import (
    END,
    FRAME_BYTES,
    FREED,
    HEAD,
    LAST,
    MESSAGE,
    OPEN,
    OPENED,
    PLACE,
    PLACED,
    RESET,
    BrokenError,
    frame,
)
from pipeline.frontends.link.memory import GatewayMemory, InReach
from pipeline.frontends.link.methods import service_methods
from pipeline.frontends.link.server import LinkFrontend
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.slices import Piece
from pipeline.workers.shm.arena import Arena
from pipeline.workers.shm.server_memory import ServerMemory

_REGION_BYTES = 4 * 2**20
_LONG = 200_000
_UNARY = 4  # the number of the only method of the service


@pytest.fixture
def memory() -> Iterator[ServerMemory]:
    memory = ServerMemory(Arena(_REGION_BYTES))
    yield memory
    memory.close()


class Gateway:
    """A gateway's side of a link with memory."""

    def __init__(self, raw: socket.socket, greeting: bytes, fd: int, held: int) -> None:
        self._raw = raw
        self._held = held
        self._rest = greeting
        hello = msgspec.json.decode(said_in(self._take())[0][2], type=frames.Hello)
        assert hello.memory is not None
        self.region = hello.memory.region
        size, start = hello.memory.region_bytes, self.region * hello.memory.region_bytes
        self.mapped = mmap.mmap(fd, size, offset=start)
        self.whole = mmap.mmap(fd, start + size)
        self._size = size
        os.close(fd)

    def _take(self) -> bytes:
        (size,) = struct.unpack_from(">I", self._rest)
        first, self._rest = self._rest[: HEAD.size + size], self._rest[HEAD.size + size :]
        return first

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._raw, data)

    async def ask(self, number: int, data: bytes, method: int, offset: int = 64) -> None:
        """Ask with a message that lies in memory."""
        self.mapped[offset : offset + len(data)] = data
        await self.say_place(number, method, self.region, offset, len(data))

    async def say_place(self, number: int, method: int, *place: int) -> None:
        flags = MESSAGE | LAST | PLACED
        payload = OPENED.pack(-1, 0, 0) + PLACE.pack(*place)
        await self.say(frame(OPEN, number, payload, flags, method))

    async def hear(self, kind: int) -> tuple[int, int, bytes]:
        """The flags, id and payload of the next frame of a kind."""
        async with asyncio.timeout(30):
            while True:
                while (
                    len(self._rest) < HEAD.size
                    or len(self._rest) < HEAD.size + HEAD.unpack_from(self._rest)[0]
                ):
                    came = await asyncio.get_running_loop().sock_recv(self._raw, 2**20)
                    assert came, "the server hung up"
                    self._rest += came
                result = self._take()
                _, said, flags, _, number = HEAD.unpack_from(result)
                if said == kind:
                    return flags, number, result[HEAD.size :]

    def read(self, places: bytes) -> bytes:
        """Return the bytes at the places that an END names."""
        result = b""
        while places:
            region, offset, size = PLACE.unpack_from(places)
            places = places[PLACE.size :]
            if region == frames.NO_REGION:
                result, places = result + places[:size], places[size:]
            else:
                start = region * self._size + offset
                result += self.whole[start : start + size]
        return result

    def unmap(self) -> None:
        """Let go of the memory."""
        self.mapped.close()
        self.whole.close()
        os.close(self._held)

    def close(self) -> None:
        self._raw.close()
        self.unmap()


@contextlib.asynccontextmanager
async def sharing(link: LinkFrontend, path: Path) -> AsyncIterator[Gateway]:
    await link.start(is_ready=True)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(path))
    loop = asyncio.get_running_loop()
    raw.setblocking(False)
    await loop.sock_sendall(raw, frames.hello(frames.Hello()))
    await until(lambda: any(connection._has_met for connection in link.connections))
    greeting, fds, _, _ = socket.recv_fds(raw, 2**20, 2)
    gateway = Gateway(raw, greeting, *fds)
    try:
        await gateway.say(frame(FREED, 0))
        yield gateway
    finally:
        gateway.close()
        await link.stop(0.0)


def echoing(memory: ServerMemory, answers: list[Piece] | None = None) -> GrpcService:
    """A service that answers with what it was asked, or with these pieces."""

    async def answer(message: Piece, call: GrpcCall) -> bytes | list[Piece]:
        assert call.takes_pieces
        return [message] if answers is None else answers

    return GrpcService("x.X", {"echo": answer})  # type: ignore[dict-item]


def test_a_message_in_memory_is_read_and_its_block_freed_with_the_next_frame(
    memory: ServerMemory, tmp_path: Path
) -> None:
    path, seen = tmp_path / "link", []

    async def run() -> None:
        async def begin(request: Request, *_: object) -> Response:
            seen.append(request.value[0])
            return Response(value=["y"])

        async with sharing(link_of(begin_of(begin), path, memory=memory), path) as gateway:
            await gateway.ask(1, Request(value=["x" * _LONG]).SerializeToString(), INFERENCE)
            _, _, payload = await gateway.hear(END)
            assert Response.FromString(payload.removeprefix(SUCCESS)).value == ["y"]
            await gateway.say(frame(frames.PING, 0))
            _, _, offsets = await gateway.hear(FREED)
            assert offsets == struct.pack(">Q", 64)

    asyncio.run(run())
    assert seen == ["x" * _LONG]
    assert memory.used == 0


@pytest.mark.parametrize("is_placed", [True, False])
def test_an_answer_stays_in_memory_until_the_gateway_has_read_it(
    memory: ServerMemory, tmp_path: Path, is_placed: bool
) -> None:
    """Also one that lay elsewhere: it is copied to where the gateway can read it."""
    path = tmp_path / "link"
    body = memory.place(_LONG) if is_placed else np.empty(_LONG, np.uint8)
    body[:] = np.arange(_LONG) % 251
    service = echoing(memory, [b"head", body.data])
    wanted = b"head" + body.tobytes()
    del body

    async def run() -> None:
        link = link_of(begin_of(None), path, services=[service], memory=memory)
        async with sharing(link, path) as gateway:
            await gateway.say(frame(OPEN, 1, OPENED.pack(-1, 0, 0), MESSAGE | LAST, _UNARY))
            flags, number, payload = await gateway.hear(END)
            assert (flags, number) == (MESSAGE | LAST | PLACED, 1)
            assert gateway.read(payload.removeprefix(SUCCESS)) == wanted
            used = memory.used
            await gateway.say(frame(FREED, 1))
            if not is_placed:
                assert used == 1
                await until(lambda: memory.used == 0)

    asyncio.run(run())


def test_without_room_an_answer_is_sent_over_the_socket(
    memory: ServerMemory, tmp_path: Path
) -> None:
    path = tmp_path / "link"
    taken = [memory.place(_REGION_BYTES // 2)]
    body = bytes(_LONG)

    async def run() -> None:
        service = echoing(memory, [b"head", body])
        link = link_of(begin_of(None), path, services=[service], memory=memory)
        async with sharing(link, path) as gateway:
            await gateway.say(frame(OPEN, 1, OPENED.pack(-1, 0, 0), MESSAGE | LAST, _UNARY))
            result = b""
            while len(result) < len(body) + 4:
                flags, _, piece = await gateway.hear(frames.DATA)
                result += piece
            assert result == b"head" + body
            assert not flags & frames.MORE
            flags, _, payload = await gateway.hear(END)
            assert payload == SUCCESS

    asyncio.run(run())
    del taken


def test_an_answer_with_too_many_pieces_is_sent_over_the_socket(
    memory: ServerMemory, tmp_path: Path
) -> None:
    path = tmp_path / "link"
    body = memory.place(_LONG)
    body[:] = 7
    pieces: list[Piece] = [body.data, *[b"x"] * (FRAME_BYTES // PLACE.size)]

    async def run() -> None:
        service = echoing(memory, pieces)
        link = link_of(begin_of(None), path, services=[service], memory=memory)
        async with sharing(link, path) as gateway:
            await gateway.say(frame(OPEN, 1, OPENED.pack(-1, 0, 0), MESSAGE | LAST, _UNARY))
            result = b""
            while len(result) < sum(map(len, pieces)):
                result += (await gateway.hear(frames.DATA))[2]
            assert result == b"".join(pieces)

    asyncio.run(run())


def test_an_answer_that_takes_too_long_to_copy_ends_with_an_error(
    memory: ServerMemory, tmp_path: Path
) -> None:
    path, offload, goes_on = tmp_path / "link", Offload(limit_s=0.0, threads=1), threading.Event()

    async def run() -> None:
        with pytest.raises(DeadlineError):
            await offload.run(goes_on.wait)  # which has the one thread
        service = echoing(memory, [bytes(2**20)])
        methods = service_methods([service], offload)
        async with sharing(LinkFrontend(methods, path, memory=memory), path) as gateway:
            await gateway.say(frame(OPEN, 1, OPENED.pack(-1, 0, 0), MESSAGE | LAST, 1))
            _, _, payload = await gateway.hear(END)
            assert b"the deadline passed" in payload
        goes_on.set()
        await offload.stop()

    asyncio.run(run())


def test_a_refused_message_in_memory_is_freed(memory: ServerMemory, tmp_path: Path) -> None:
    path = tmp_path / "link"

    async def run() -> None:
        async with sharing(link_of(begin_of(None), path, memory=memory), path) as gateway:
            await gateway.ask(1, b"x" * _LONG, 99)
            _, number, _ = await gateway.hear(RESET)
            _, _, offsets = await gateway.hear(FREED)
            assert (number, offsets) == (1, struct.pack(">Q", 64))

    asyncio.run(run())


@pytest.mark.parametrize(
    "place", [(0, 64, 10), (1, _REGION_BYTES - 5, 10), (1, 2**63, 1), (frames.NO_REGION, 0, 4)]
)
def test_a_place_that_is_not_the_gateways_ends_the_connection(
    memory: ServerMemory, place: tuple[int, int, int]
) -> None:
    shared = GatewayMemory(memory)
    assert shared.description.region == 1
    with pytest.raises(BrokenError):
        shared.message(PLACE.pack(*place))
    shared.close()
    assert memory.used == 0


def test_memory_that_cannot_be_shared_leaves_no_open_files(
    memory: ServerMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more() -> tuple[int, int]:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", no_more)
        with pytest.raises(OSError, match="too many"):
            GatewayMemory(memory)
    shared = GatewayMemory(memory)
    assert shared.description.region == 1
    os.close(descriptor_for_gateway(shared))
    shared.close()
    monkeypatch.setattr(memory, "open_region", no_more)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="too many"):
        GatewayMemory(memory)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("is_killed", [False, True])
def test_memory_of_a_gateway_is_reused_after_it_was_unmapped(
    memory: ServerMemory, is_killed: bool
) -> None:
    """And not before: it may still write to its regions, and read the answers in others."""

    shared = GatewayMemory(memory)
    held = descriptor_for_gateway(shared)
    process = subprocess.Popen(["sleep", "60"], pass_fds=[held])

    async def run() -> None:
        shared.is_mapped = True
        region, ended = shared.description.region, asyncio.Event()
        answer = memory.place(_LONG)
        in_reach = shared.in_reach([answer.data], FRAME_BYTES)
        assert isinstance(in_reach, InReach)
        shared.keep(7, in_reach)
        del answer, in_reach
        body = shared.message(PLACE.pack(region, 64, _LONG))
        shared.leave(asyncio.get_running_loop(), ended.set)
        if is_killed:
            os.close(held)
        await asyncio.sleep(0)
        assert memory.used == 2
        process.kill()
        process.wait()
        if not is_killed:
            await asyncio.sleep(0)
            assert memory.used == 2
            os.close(held)
        async with asyncio.timeout(30):
            await ended.wait()
        assert memory.used == 1  # the body of a request under way
        assert memory.open_region() != region
        del body
        assert memory.used == 0
        assert memory.open_region() == region

    asyncio.run(run())


def descriptor_for_gateway(shared: GatewayMemory) -> int:
    """The end of a pipe that a gateway gets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        transport: Any = SimpleNamespace(get_extra_info=lambda name: ours)
        assert shared.give(transport, b"x") == 1
        _, (memory, held), _, _ = socket.recv_fds(theirs, 1, 2)
        os.close(memory)
    return held


def test_memory_of_a_reconnecting_gateway_is_reused(memory: ServerMemory, tmp_path: Path) -> None:
    """Its process continues, and its connection was given up."""
    path = tmp_path / "link"

    async def run() -> None:
        link = link_of(begin_of(None), path, memory=memory)
        async with sharing(link, path) as gateway:
            region = gateway.region
            (connection,) = link.connections
            connection.transport.abort()
            await until(lambda: not link.connections)
            assert memory.open_region() != region
            gateway.unmap()
            await until(lambda: memory.arena._unused == [region])
            gateway.unmap = lambda: None  # type: ignore[method-assign]

    asyncio.run(run())


def test_a_server_without_process_workers_has_memory_of_the_links_own(tmp_path: Path) -> None:
    path = tmp_path / "link"

    async def run() -> None:
        link = link_of(begin_of(None), path, own_memory_mib=_REGION_BYTES // 2**20)
        async with sharing(link, path) as gateway:
            assert gateway.region == 1

    asyncio.run(run())


def test_long_answers_are_copied_outside_the_loop(memory: ServerMemory) -> None:
    async def run() -> None:
        shared = GatewayMemory(memory)
        offload = Offload(threads=1)
        offload.start()
        pieces: list[Piece] = [b"a" * FRAME_BYTES, b"b" * (2**20)]
        assert shared.in_reach(pieces, FRAME_BYTES) is pieces  # not mapped yet
        shared.is_mapped = True
        assert shared.in_reach(pieces, FRAME_BYTES) is None
        copied = await shared.copied(pieces, offload)
        assert isinstance(copied, InReach)
        (piece,) = copied.pieces
        assert bytes(piece) == b"".join(pieces)
        assert shared.in_reach([b"h", piece], FRAME_BYTES) == ([b"h", piece], [b"h", *copied.parts])
        del copied, piece
        await offload.stop()
        shared.close()

    asyncio.run(run())
    assert memory.used == 0
