"""The gateway's side of a link, in Python."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.grpc.server import GrpcService
from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import (
    CREDIT,
    DATA,
    END,
    ENDED,
    FRAME_BYTES,
    GOAWAY,
    HEAD,
    HELLO,
    LAST,
    MESSAGE,
    MORE,
    OPEN,
    OPENED,
    STATE,
    frame,
)
from pipeline.frontends.link.methods import inference_methods, service_methods
from pipeline.frontends.link.places import find_secret
from pipeline.frontends.link.server import LinkFrontend
from pipeline.frontends.wire import JsonWire, PipelineWire
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.slices import Limits

Said = tuple[int, int, bytes]
"""Kind, id and payload of a frame; of an END with all data of its call behind it."""

SUCCESS = ENDED.pack(0, 200, 0, 0, 0, 0)
OURS = frames.hello(frames.Hello())
"""A gateway's first frame, where there is no secret."""

INFERENCE, JSON, GRPC_INFERENCE = 1, 2, 3
"""Numbers of the methods; those of services follow."""

_PATIENCE_S = 30


def link_of(
    begin: Begin,
    path: Path,
    takes_trace: bool = False,
    forwarding: HeaderForwarding | None = None,
    services: Sequence[GrpcService] = (),
    **how: Any,
) -> LinkFrontend:
    """A link for an engine, as the registry makes it."""
    offload = Offload(threads=0)
    methods = [
        *inference_methods(
            begin, PipelineWire(), JsonWire(offload, Limits()), takes_trace, forwarding
        ),
        *service_methods(services, offload),
    ]
    return LinkFrontend(methods, path, takes_trace, forwarding is not None, **how)


def state(is_ready: bool, in_flight: int = 0) -> Said:
    return STATE, 0, frames.STATED.pack(is_ready, in_flight)


def message(
    number: int,
    data: bytes,
    timeout_ns: int = -1,
    metadata: bytes = b"",
    method: int = INFERENCE,
    is_last: bool = True,
    caller: bytes = b"",
) -> bytes:
    """The frames of a call with one message, however long that is."""
    head = OPENED.pack(timeout_ns, len(caller), len(metadata)) + caller + metadata
    first = FRAME_BYTES - len(head)
    pieces = [
        data[first + at : first + at + FRAME_BYTES]
        for at in range(0, len(data) - first, FRAME_BYTES)
    ]
    last = MESSAGE | (LAST if is_last else 0)
    if not pieces:
        return frame(OPEN, number, head + data, last, method)
    said = [frame(OPEN, number, head + data[:first], MESSAGE | MORE, method)]
    said += [frame(DATA, number, piece, MESSAGE | MORE) for piece in pieces[:-1]]
    return b"".join((*said, frame(DATA, number, pieces[-1], last)))


def asking(
    number: int,
    request: Request,
    timeout_ns: int = -1,
    trace: str = "",
    headers: dict[str, str] | None = None,
) -> bytes:
    """The frames of a request."""
    told = [("traceparent", trace)] if trace else []
    metadata = frames.fields([*told, *(headers or {}).items()])
    return message(number, request.SerializeToString(), timeout_ns, metadata)


def ask(number: int, text: str = "", timeout_ns: int = -1, trace: str = "") -> bytes:
    return asking(number, Request(value=[text]), timeout_ns, trace)


def answer(number: int, *texts: str) -> Said:
    return END, number, SUCCESS + Response(value=texts).SerializeToString()


def refusal_of(said: Said) -> tuple[int, int, str]:
    """(HTTP status, err_no, text)"""
    kind, _, body = said
    assert kind == END
    _, status, err_no, _, size, _ = ENDED.unpack_from(body)
    return status, err_no, body[ENDED.size : ENDED.size + size].decode()


def code_of(said: Said) -> int:
    """gRPC's code of an END."""
    return said[2][0]


def retry_after_s_of(said: Said) -> int:
    """Of a refusal: when to try again; 0: never."""
    return int(ENDED.unpack_from(said[2])[3])


def said_in(data: bytes) -> list[Said]:
    """The frames that are there in whole."""
    found = []
    while data:
        size, kind, _, _, number = HEAD.unpack_from(data)
        found.append((kind, number, data[HEAD.size : HEAD.size + size]))
        data = data[HEAD.size + size :]
    return found


class LinkPeer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pieces: dict[int, list[bytes]] = {}

    def say(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    async def hear(self) -> Said:
        """The next message, of all its pieces, for which credit is given back.

        CREDIT and GOAWAY are passed over.
        """
        while True:
            kind, number, body = await self.hear_frame()
            if kind == DATA:
                self._pieces.setdefault(number, []).append(body)
                self.say(frames.credit(number, len(body)))
            elif kind not in (CREDIT, GOAWAY):
                return kind, number, body + b"".join(self._pieces.pop(number, []))

    async def hear_frame(self) -> Said:
        async with asyncio.timeout(_PATIENCE_S):
            size, kind, _, _, number = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            return kind, number, await self._reader.readexactly(size)

    async def hears_the_end(self) -> bool:
        """Whether nothing but a GOAWAY comes before the other side hangs up."""
        async with asyncio.timeout(_PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                heard = said_in(await self._reader.read())
                return all(kind == GOAWAY for kind, _, _ in heard)
        return True

    def leave(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def linked(path: Path) -> AsyncIterator[LinkPeer]:
    """A connection on which both sides have said HELLO, and the server how it is."""
    gateway = LinkPeer(*await asyncio.open_unix_connection(str(path), limit=2**30))
    try:
        gateway.say(frames.hello(frames.Hello(secret=find_secret(path.parent))))
        assert (await gateway.hear())[0] == HELLO
        assert (await gateway.hear())[0] == STATE
        yield gateway
    finally:
        gateway.leave()


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop go round until it is so; no time is given to threads."""
    async with asyncio.timeout(_PATIENCE_S):
        while not is_so():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0)


async def ask_once(path: Path, request: Request) -> Response:
    """The answer to a request, on a connection of its own."""
    async with linked(path) as gateway:
        gateway.say(asking(1, request))
        kind, _, body = await gateway.hear()
        assert kind == END
        assert body.startswith(SUCCESS)
        return Response.FromString(body.removeprefix(SUCCESS))
