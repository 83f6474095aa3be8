"""Callers who leave in the middle of everything, or go silent: a few a second, as long as asked.

`python -m benchmarks.attack.nuisance HTTP_PORT GRPC_PORT SECONDS PER_S`
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable

from benchmarks.attack import frames
from benchmarks.attack.catalog import message, request
from benchmarks.attack.frames import frame

_SILENT_S = (1.0, 90.0)  # for the silent ones; the gateway gives HTTP/2 up after 40
_SILENT_AT_ONCE = 200
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST
_HEAD = b"POST /echo/prediction HTTP/1.1\r\nHost: localhost\r\n"


def _whole_http(draw: random.Random) -> bytes:
    body = message(False, draw.choice((10, 1000, 100_000)))
    return _HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def _chunks(draw: random.Random) -> bytes:
    return _HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"key\r\n' + b"f" * draw.randrange(5)


def _h2(is_grpc: bool) -> Callable[[random.Random], bytes]:
    def written(draw: random.Random) -> bytes:
        data = frames.PREFACE + frames.settings()
        for number in range(draw.randrange(20)):
            stream = frames.stream_id(number)
            data += request(is_grpc, number, frames.END_HEADERS)
            body = message(is_grpc, draw.choice((10, 10_000)))
            ends = draw.random() < 0.5
            data += frame(frames.DATA, frames.END_STREAM * ends, stream, body)
            if draw.random() < 0.5:
                data += frame(frames.RST_STREAM, 0, stream, frames.CANCEL)
        return data

    return written


_KINDS: dict[str, tuple[bool, bytes | None, Callable[[random.Random], bytes]]] = {
    # to the gRPC port; ALPN, None: no TLS; what is said
    "HTTP/1.1": (False, b"http/1.1", _whole_http),
    "chunks": (False, b"http/1.1", _chunks),
    "HTTP/2": (False, b"h2", _h2(False)),
    "gRPC": (True, b"h2", _h2(True)),
    "HTTP: a connection": (False, None, lambda _: b""),
    "gRPC: a connection": (True, None, lambda _: b""),
    "HTTP: half a greeting": (False, None, lambda _: b"\x16\x03\x01\x02\x00\x01"),
    "gRPC: half a greeting": (True, None, lambda _: b"\x16\x03\x01\x02\x00\x01"),
}


class Nuisance:
    """Callers of both ports; `seen` counts what they did."""

    def __init__(self, http_port: int, grpc_port: int, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._ports = {False: http_port, True: grpc_port}
        self._draw = random.Random(seed)
        self._silent = asyncio.Semaphore(_SILENT_AT_ONCE)

    async def go_on(self, seconds: float, per_s: float) -> None:
        """Call so often for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                while True:
                    await asyncio.sleep(self._draw.expovariate(per_s))
                    group.create_task(self._call())

    async def _call(self) -> None:
        name = self._draw.choice([*_KINDS])
        is_grpc, protocol, say = _KINDS[name]
        data = say(self._draw)
        data = data[: self._draw.randrange(len(data) + 1)]  # all of it, or not
        try:
            async with asyncio.timeout(30):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", self._ports[is_grpc], ssl=_tls(protocol)
                )
        except (OSError, TimeoutError) as error:
            self.seen[type(error).__name__] += 1
            return
        try:
            writer.write(data)
            await self._stay(name)
        finally:
            raw = writer.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):  # the server has hung up before
                if self._draw.random() < 0.7:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _stay(self, name: str) -> None:
        """Wait a moment, or silently for long."""
        if self._draw.random() < 0.8 or self._silent.locked():
            self.seen[f"{name}, left"] += 1
            await asyncio.sleep(self._draw.choice((0.0, 0.01, 0.2)))
            return
        async with self._silent:
            self.seen[f"{name}, silent"] += 1
            await asyncio.sleep(self._draw.uniform(*_SILENT_S))


@functools.cache
def _tls(protocol: bytes | None) -> ssl.SSLContext | None:
    if protocol is None:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol.decode()])
    return context


def main(http_port: str, grpc_port: str, seconds: str, per_s: str) -> None:
    """Call, and print what was done as JSON."""
    nuisance = Nuisance(int(http_port), int(grpc_port), seed=1)
    asyncio.run(nuisance.go_on(float(seconds), float(per_s)))
    print(json.dumps(nuisance.seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
