"""Hostile callers: what they send, wound by wound, and whether a server has come through.

Random cases come from one seed a test, which is printed with a failure; `FUZZ_SEED=... pytest ...`
repeats them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
from collections.abc import Iterator

import grpc
from doubles import client_of, wait_until
from raw_http import Connection, request

from pipeline import PipelineServer

CASES_AT_ONCE = 60
READ_S = 0.25  # how long a case waits for an answer that may not be owed
GOOD_BODY = b'{"key": ["a"], "value": ["1"]}'


class Recorder(logging.Handler):
    """Keeps what is logged as an error, save that gRPC crashed over a path: see the door's test."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if "codec can't decode byte" not in text:
            self.texts.append(text)


class Target:
    """The server that is fired at, and whether it has come through."""

    def __init__(self, server: PipelineServer, errors: Recorder) -> None:
        self.server = server
        self.errors = errors

    @property
    def http_port(self) -> int:
        assert self.server.http_port is not None
        return self.server.http_port

    @property
    def rpc_port(self) -> int:
        assert self.server.rpc_port is not None
        return self.server.rpc_port

    def _answers_grpc(self) -> bool:
        """Whether a good request is answered; a door that has to be opened again has a moment."""
        with client_of(self.server) as client:
            try:
                return client.predict({"a": "1"}, timeout=30).value == ["1"]
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    return False
                raise

    def assert_well(self) -> None:
        with Connection(self.http_port) as connection:
            connection.send(request(GOOD_BODY))
            answer = connection.answer()
            assert (answer.status, answer.json["value"]) == (200, ["1"])
        wait_until(self._answers_grpc)
        executor = self.server.executor
        wait_until(lambda: (executor.inside, executor.waiting) == (0, 0))
        assert self.errors.texts == []


@contextlib.contextmanager
def survives(server: PipelineServer) -> Iterator[Target]:
    """The server; afterwards it must be well."""
    errors = Recorder()
    loggers = [logging.getLogger(name) for name in ("asyncio", "grpc", "pipeline.frontends")]
    for logger in loggers:
        logger.addHandler(errors)
    try:
        found = Target(server, errors)
        yield found
        found.assert_well()
    finally:
        for logger in loggers:
            logger.removeHandler(errors)


def seeded() -> random.Random:
    """Random numbers of a seed that is printed."""
    seed = int(os.environ.get("FUZZ_SEED") or random.getrandbits(32))
    print(f"FUZZ_SEED={seed}")  # pytest shows it with a failure
    return random.Random(seed)


# Firing -------------------------------------------------------------------------------------


async def _fire_one(port: int, data: bytes, ends: bool) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    with contextlib.suppress(OSError):  # it was hung up on, or heard nothing for long enough
        writer.write(data)
        if ends:
            writer.write_eof()
        async with asyncio.timeout(READ_S):
            while piece := await reader.read(65536):
                said += piece
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return said


def fire(port: int, cases: list[bytes], rng: random.Random) -> list[bytes]:
    """Send each case on a connection of its own; what the server said to each."""

    async def all_of_them() -> list[bytes]:
        said: list[bytes] = []
        for start in range(0, len(cases), CASES_AT_ONCE):
            batch = cases[start : start + CASES_AT_ONCE]
            said += await asyncio.gather(
                *(_fire_one(port, case, rng.random() < 0.2) for case in batch)
            )
        return said

    return asyncio.run(all_of_them())


FIRST_LINE = re.compile(rb"HTTP/1\.1 (100|200|400|403|404|405|408|413|415|431|501|503) [A-Z]")


def assert_is_http(said: bytes) -> None:
    """Nothing, or an answer that this server gives to callers' faults; never a 500."""
    assert not said or FIRST_LINE.match(said), said[:200]


# Wounds -------------------------------------------------------------------------------------

TOKENS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b":", b"\t", b"\xff\xfe", b"\xed\xa0\x80",
    b"Content-Length: -1\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n",
    b"Content-Length: 18446744073709551616\r\n", b"Content-Length: 1048577\r\n",
    b"Content-Length: +2\r\n", b"Content-Length: 0x2\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: chunked, chunked\r\n",
    b"Content-Encoding: gzip\r\n", b"Content-Encoding: br\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Grpc-Timeout: 99999999H\r\n", b"Grpc-Timeout: -5S\r\n", b"A: " + b"a" * 70_000 + b"\r\n",
    b"ffffffffffffffff\r\n", b"-1\r\n", b"0\r\n\r\n", b"HTTP/1.1", b"HTTP/2.0", b"CONNECT ",
    b"[" * 5000, b'{"a":' * 5000, b"1e999", b"-" + b"9" * 400, b'"\\ud800"', b"NaN", b"null",
]  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to four wounds."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        end = min(end, at + rng.choice((1, 4, 64)))
        wound = rng.choice(("cut", "flip", "drop", "repeat", "token", "noise"))
        if wound == "cut":
            data = data[:at]
        elif wound == "flip" and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif wound == "drop":
            data = data[:at] + data[end:]
        elif wound == "repeat":
            data = data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]
        elif wound == "token":
            data = data[:at] + rng.choice(TOKENS) + data[at:]
        else:
            data = data[:at] + rng.randbytes(rng.choice((1, 16))) + data[at:]
    return data


def with_header(data: bytes, header: bytes) -> bytes:
    """`data` with one more line behind its request line."""
    line, _, rest = data.partition(b"\r\n")
    return line + b"\r\n" + header + rest
