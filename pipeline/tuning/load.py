"""Loads: requests in a file of JSON lines, and clients that ask them of a server over HTTP.

A line is `{"path": "/service/prediction", "body": {...}, "at_once": 3}`. `at_once`, how many
requests there were inside with it, may be absent: a file of examples is easily written by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, cast

import msgspec

from pipeline.errors import ConfigError

_MOST_BYTES = 2**30  # of a file
_MOST_HEAD_BYTES = 65536
_MOST_TEXT = 300  # of an answer, in a message
_HEAD_END = b"\r\n\r\n"
_PLAIN_ERROR = b'{"err_no":'
_PLAIN_OK = b'{"err_no":0,'
_ANSWER_S = 30.0  # for the last answers, when a load is over


class LoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request of a load: what is posted to a path, and how many were inside with it."""

    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]*\Z")]
    body: msgspec.Raw
    at_once: Annotated[int, msgspec.Meta(ge=0)] = 0

    def as_bytes(self) -> bytes:
        body = bytes(self.body)
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


_decode = msgspec.json.Decoder(LoadRequest).decode


def read_load(file: str | os.PathLike[str]) -> list[LoadRequest]:
    """Return the requests of a file. Raises ConfigError: it has none, or a line is wrong."""
    name = os.fspath(file)
    try:
        if os.stat(name).st_size > _MOST_BYTES:
            raise ConfigError(f"{name}: larger than {_MOST_BYTES:,} bytes")
        with open(name, "rb") as lines:
            requests = list(_requests(name, lines))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error
    if not requests:
        raise ConfigError(f"{name}: no request in it")
    return requests


def _requests(name: str, lines: Iterable[bytes]) -> Iterator[LoadRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if not line.endswith(b"\n"):  # a recording that was cut off
                return
            raise ConfigError(f"{name}:{number}: {error}") from None


@dataclass(slots=True)
class LoadFigures:
    """Times of all answers that the clients saw, in s, and the first that was an error."""

    seconds: float = 0.0
    times_s: list[float] = field(default_factory=list)
    failed: int = 0
    error: str = ""

    @property
    def per_s(self) -> float:
        """Requests that were answered each second."""
        return len(self.times_s) / self.seconds if self.seconds else 0.0

    def percentile_ms(self, percent: float) -> float:
        """Return the time below which so many answers came."""
        times = sorted(self.times_s)
        return 1e3 * times[int(percent / 100 * (len(times) - 1))] if times else 0.0


async def replay(
    port: int,
    requests: Sequence[LoadRequest],
    clients: int,
    seconds: float,
    host: str = "127.0.0.1",
) -> LoadFigures:
    """Ask for `seconds`: `clients` connections, on each a request as soon as one is answered.

    The requests are taken in turn. Raises OSError: the server is not there, or went away.
    """
    figures = LoadFigures()
    load = _Load([request.as_bytes() for request in requests], figures)
    loop = asyncio.get_running_loop()
    talks = []
    try:
        for _ in range(clients):
            _, talk = await loop.create_connection(lambda: _Client(load), host, port)
            talks.append(talk)
        begin = time.perf_counter()
        for talk in talks:
            talk.ask()
        await asyncio.wait(
            [talk.is_lost for talk in talks],
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        figures.seconds = time.perf_counter() - begin
        load.is_over = True
        lost = next((talk for talk in talks if talk.is_lost.done()), None)
        if lost is not None:
            raise ConnectionError(lost.is_lost.result())
        if not figures.times_s:  # slower than the load is long: wait for the first
            await asyncio.wait([load.answered], timeout=_ANSWER_S)
            figures.seconds = time.perf_counter() - begin
    finally:
        load.is_over = True
        for talk in talks:
            talk.close()
    return figures


class _Load:
    """Things that the clients have in common."""

    def __init__(self, requests: Sequence[bytes], figures: LoadFigures) -> None:
        self._turn = itertools.cycle(requests)
        self.figures = figures
        self.is_over = False
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next(self) -> bytes:
        return next(self._turn)

    def answer(self, took_s: float, status: bytes, body: bytes) -> None:
        figures = self.figures
        figures.times_s.append(took_s)
        if not self.answered.done():
            self.answered.set_result(None)
        is_wrong = body.startswith(_PLAIN_ERROR) and not body.startswith(_PLAIN_OK)
        if status != b"200" or is_wrong:
            figures.failed += 1
            text = body[:_MOST_TEXT].decode("utf-8", "replace")
            figures.error = figures.error or f"HTTP {status.decode()}: {text}"


class _Client(asyncio.Protocol):
    """One connection: asks, reads the answer, asks again."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._since = 0.0
        self.is_lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it

    def ask(self) -> None:
        if self._transport is not None and not self._load.is_over:
            self._since = time.perf_counter()
            self._transport.write(self._load.next())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(_HEAD_END)
        if end < 0:
            if len(self._received) > _MOST_HEAD_BYTES:
                self._lose("the answer has no end of its head")
            return
        head = bytes(self._received[:end]).lower()
        _, is_there, rest = head.partition(b"\r\ncontent-length:")
        if not is_there:
            self._lose("the answer is a stream, which is not replayed")
            return
        start = end + len(_HEAD_END)
        if len(self._received) < (stop := start + int(rest.partition(b"\r\n")[0])):
            return
        body = bytes(self._received[start:stop])
        del self._received[:stop]
        if not self._load.is_over:
            took_s = time.perf_counter() - self._since
            self._load.answer(took_s, head[9:12], body)
            self.ask()
        elif not self._load.figures.times_s:
            self._load.answer(time.perf_counter() - self._since, head[9:12], body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the server closed the connection{f': {exc}' if exc else ''}")

    def _lose(self, why: str) -> None:
        if not self.is_lost.done():
            self.is_lost.set_result(why)
