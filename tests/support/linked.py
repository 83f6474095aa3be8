"""The gateway's side of a link, in Python."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from pipeline.frontends.link.frames import (
    ANSWER,
    ASK,
    ASKED,
    FAILED,
    FAILURE,
    HEAD,
    MORE,
    MORE_BACK,
    PIECE_BYTES,
    READY,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response

Said = tuple[int, int, bytes]
"""Kind, id and body of a frame."""

_PATIENCE_S = 30
_SIZE_BYTES = 4


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return HEAD.pack(HEAD.size - _SIZE_BYTES + len(body), kind, number) + body


def message(kind: int, number: int, body: bytes) -> bytes:
    """The frames of a message, however long it is."""
    pieces = [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)] or [b""]
    last = frame(kind, number, pieces.pop())
    return b"".join(frame(MORE, number, piece) for piece in pieces) + last


def asking(
    number: int,
    request: Request,
    timeout_ns: int = -1,
    trace: str = "",
    headers: dict[str, str] | None = None,
) -> bytes:
    """The frames of a request; with `headers` as a server of HEADED_VERSION reads it."""
    told = ASKED.pack(timeout_ns, len(trace)) + trace.encode("latin-1")
    if headers is not None:
        field = "".join(f"{name}\n{value}\n" for name, value in headers.items())
        told += len(field).to_bytes(2) + field.encode("latin-1")
    return message(ASK, number, told + request.SerializeToString())


def ask(number: int, text: str = "", timeout_ns: int = -1, trace: str = "") -> bytes:
    return asking(number, Request(value=[text]), timeout_ns, trace)


def answer(number: int, *texts: str) -> Said:
    return ANSWER, number, Response(value=texts).SerializeToString()


def refusal_of(said: Said) -> tuple[int, int, str]:
    """(HTTP status, err_no, text)"""
    kind, _, body = said
    assert kind == FAILURE
    status, err_no, _ = FAILED.unpack_from(body)
    return status, err_no, body[FAILED.size :].decode()


def retry_after_s_of(said: Said) -> int:
    """Of a refusal: when to try again; 0: never."""
    return int(FAILED.unpack_from(said[2])[2])


def said_in(data: bytes) -> list[Said]:
    """The frames that are there in whole."""
    found = []
    while data:
        size, kind, number = HEAD.unpack_from(data)
        found.append((kind, number, data[HEAD.size : _SIZE_BYTES + size]))
        data = data[_SIZE_BYTES + size :]
    return found


class Linked:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pieces: dict[int, list[bytes]] = {}

    def say(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    async def hear(self) -> Said:
        """The next message, of all its pieces."""
        while True:
            kind, number, body = await self.hear_frame()
            self._pieces.setdefault(number, []).append(body)
            if kind != MORE_BACK:
                return kind, number, b"".join(self._pieces.pop(number))

    async def hear_frame(self) -> Said:
        async with asyncio.timeout(_PATIENCE_S):
            size, kind, number = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            body = await self._reader.readexactly(size - HEAD.size + _SIZE_BYTES)
            return kind, number, body

    async def hears_the_end(self) -> bool:
        """Whether nothing more comes before the other side hangs up."""
        async with asyncio.timeout(_PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                return await self._reader.read() == b""
        return True

    def leave(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def linked(path: Path) -> AsyncIterator[Linked]:
    """A connection on which the server has said whether it is ready."""
    gateway = Linked(*await asyncio.open_unix_connection(str(path), limit=2**30))
    try:
        assert (await gateway.hear())[0] == READY
        yield gateway
    finally:
        gateway.leave()


async def ask_once(path: Path, request: Request) -> Response:
    """The answer to a request, on a connection of its own."""
    async with linked(path) as gateway:
        gateway.say(asking(1, request))
        kind, _, body = await gateway.hear()
        assert kind == ANSWER
        return Response.FromString(body)
