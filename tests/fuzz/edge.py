"""`python -m fuzz.edge`: checks that the gateway answers any request as the embedded edge does.

Two servers have the same graph: one with the embedded frontends, the other with the gateway. A
second gateway in front of the first server takes HTTP/2. Both edges get requests of HTTP/1.1, valid
and damaged, the same over HTTP/2, and calls of gRPC; the status, headers and body, and also
`err_no` and text, have to be equal. Where the head of a request is damaged, net/http and llhttp may
disagree whether it is HTTP: then one of them reports it and closes the connection.
tests/support/conformance_different.py asserts the known differences.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import io
import logging
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any

import grpc
import h2.connection
import h2.events
import h2.exceptions
from conformance_dialogue import normal, same
from conformance_gateway import PATIENT, both_ports, gateway_before
from conformance_grpc import INFERENCE, UNLIMITED
from conformance_server import Holder, conformance_server
from raw_http import Answer, _Unclosable

from fuzz.edge_cases import GrpcCase, HttpCase, grpc_case, http_case
from pipeline.gateway.build import build
from pipeline.proto.pipeline_service_pb2 import Response

_AT_ONCE = 16
_PATIENCE_S = 1.5  # for a server that waits for the rest of a damaged request
_LONG_S = 15.0  # for the second try
_NO_HTTP = "this is not a valid HTTP"
_NUMBERS = re.compile(r"\d+")
_BY_HOP = ("connection", "host", "te", "expect", "upgrade")


@dataclass(frozen=True)
class Ports:
    """The ports of both edges, for HTTP and gRPC, and of the gateway for HTTP/2."""

    door: int
    gateway: int
    door_grpc: int
    gateway_grpc: int
    h2: int


class _Open(Holder):
    """A holder that holds no request: damaged ones may name the method that waits."""

    def wait(self) -> None:
        """Return at once."""


@contextlib.contextmanager
def edges() -> Iterator[Ports]:
    """Run the servers and gateways."""
    holder = _Open()
    embedded = conformance_server(holder, edge="embedded", http_port=0, rpc_port=0)
    behind = conformance_server(holder, edge="gateway", http_port=0, rpc_port=0)
    binary = build()
    with embedded as door, behind as own:
        flags = (*PATIENT, "--h2c")
        with gateway_before(binary, both_ports(door), flags=flags) as gateway:
            gateway.wait_until_ready()
            ports = (door.http_port, own.http_port, door.rpc_port, own.rpc_port)
            assert all(ports)
            yield Ports(*(port or 0 for port in ports), gateway.port)


# HTTP/1.1 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """The answers on a connection; `is_over`: the server closed it, and did not wait for more."""

    answers: tuple[Answer, ...]
    is_over: bool


async def talk(port: int, case: HttpCase, patience_s: float) -> Heard:
    """Send a request on a connection of its own, and read until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said, is_over = b"", True
    try:
        writer.write(case.raw())
        while piece := await asyncio.wait_for(reader.read(65536), patience_s):
            said += piece
    except TimeoutError:
        is_over = False
    except OSError:
        pass
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Heard(tuple(_answers(said, case.method)), is_over)


def _answers(said: bytes, method: str) -> Iterator[Answer]:
    file = io.BytesIO(said)
    while file.tell() < len(said):
        response = HTTPResponse(_Unclosable(file), method=method)  # type: ignore[arg-type]
        try:
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            yield _unpacked(Answer(response.status, headers, response.read()))
        except (HTTPException, ValueError):
            yield Answer(0, {}, said[:200])
            return


def _unpacked(answer: Answer) -> Answer:
    if answer.body and answer.headers.get("content-encoding") == "gzip":
        return Answer(answer.status, answer.headers, gzip.decompress(answer.body))
    return answer


def difference(door: Heard, gateway: Heard, case: HttpCase) -> str:
    """Return the difference; "" if there is none, "parsers" if it is an allowed one."""
    ours, theirs = [*map(normal, door.answers)], [*map(normal, gateway.answers)]
    statuses = [answer.status for answer in (*door.answers, *gateway.answers)]
    if any(status in (0, 502, 505) for status in statuses):
        return f"{statuses}"
    if same(ours, theirs) and door.is_over == gateway.is_over:
        return ""
    if not case.is_strict and (_is_refused(door) or _is_refused(gateway)):
        return "parsers"
    if not case.is_strict and not (door.is_over and gateway.is_over):
        return "parsers"  # a damaged length: one side waits for more
    return f"{ours} {door.is_over}\n is not\n{theirs} {gateway.is_over}"


def _is_refused(heard: Heard) -> bool:
    """Whether the last answer reports that this is not HTTP, or there is no answer."""
    if not heard.answers:
        return heard.is_over
    last = heard.answers[-1]
    return last.status in (400, 417, 431, 501) and last.headers.get("connection") != "keep-alive"


# HTTP/2 -------------------------------------------------------------------------------------


class Http2:
    """A connection of HTTP/2 with one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, case: HttpCase) -> Answer:
        """Return the answer to a request."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._state = h2.connection.H2Connection()
            self._state.initiate_connection()
        stream = self._state.get_next_available_stream_id()
        self._state.send_headers(stream, _fields(case), end_stream=not case.body)
        for start in range(0, len(case.body), 16384):
            piece = case.body[start : start + 16384]
            ends = start + 16384 >= len(case.body)
            self._state.send_data(stream, piece, end_stream=ends)
        status, headers, body, is_over = 0, {}, b"", False
        while not is_over:
            for event in await self._events():
                if isinstance(event, h2.events.ResponseReceived):
                    headers = {name.decode(): value.decode() for name, value in event.headers}
                    status = int(headers.pop(":status"))
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data
                    length = event.flow_controlled_length
                    self._state.acknowledge_received_data(length, event.stream_id)
                is_over |= isinstance(event, h2.events.StreamEnded | h2.events.StreamReset)
                if isinstance(event, h2.events.ConnectionTerminated):
                    is_over = True
                    self.close()
        return _unpacked(Answer(status, headers, body))

    async def _events(self) -> list[h2.events.Event]:
        assert self._writer is not None
        self._writer.write(self._state.data_to_send())
        data = await asyncio.wait_for(self._reader.read(65536), _LONG_S)
        return self._state.receive_data(data) if data else [h2.events.ConnectionTerminated()]

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _fields(case: HttpCase) -> list[tuple[str, str]]:
    fields = [(":method", case.method), (":scheme", "http"), (":path", case.path)]
    fields.append((":authority", "localhost"))
    for header in case.headers:
        name, _, value = header.partition(":")
        if name.lower() not in _BY_HOP:
            fields.append((name.lower(), value.strip()))
    return [*fields, ("content-length", str(len(case.body)))]


def is_for_http2(case: HttpCase) -> bool:
    """Return whether a case is the same over HTTP/2."""
    return case.is_strict and case.path.startswith("/") and case.path.isascii()


# gRPC ---------------------------------------------------------------------------------------


async def call(channel: grpc.aio.Channel, case: GrpcCase) -> tuple[Any, ...]:
    """Return the ending of a call: code, text, our trailers, answer."""
    asked = channel.unary_unary(case.method)(
        case.message, metadata=case.metadata, compression=case.compression, timeout=30
    )
    try:
        answer: bytes | None = await asked
        text = ""
    except grpc.aio.AioRpcError as error:
        answer, text = None, error.details() or ""
    trailers = {
        key: value for key, value in await asked.trailing_metadata() if key.startswith("pipeline-")
    }
    code = await asked.code()
    return code.name, _words(code, text), trailers, _read(case.method, answer)


def _read(method: str, answer: bytes | None) -> Any:
    """Return an answer without the numbers of requests in its text, for the comparison."""
    if method != INFERENCE or answer is None:
        return answer
    said = Response.FromString(answer)
    said.err_msg = _NUMBERS.sub("N", said.err_msg)
    return said


def _words(code: grpc.StatusCode, text: str) -> str:
    """Return a text for the comparison; texts of the gRPC libraries are left out."""
    if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED):
        return ""
    return _NUMBERS.sub("N", text)


# The run ----------------------------------------------------------------------------------


@dataclass
class Found:
    """The number of cases by kind, and the differences."""

    played: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, seed: int, what: str, case: object, told: str) -> None:
        self.findings.append(f"seed {seed}, {what}: {str(case)[:3000]}\n{told[:3000]}")


class Players:
    """Sends the case of a seed to both edges; used as an async context manager."""

    def __init__(self, ports: Ports, found: Found) -> None:
        self._ports = ports
        self._found = found

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Players]:
        door, gateway = (
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", UNLIMITED)
            for port in (self._ports.door_grpc, self._ports.gateway_grpc)
        )
        async with door, gateway:
            self._channels = (door, gateway)
            yield self

    async def play(self, seed: int, second: Http2) -> None:
        """Play one case over a random protocol."""
        draw = random.Random(seed)
        way = draw.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/2", "gRPC"))
        if way == "gRPC":
            await self._grpc(seed, grpc_case(draw))
            return
        case = http_case(draw)
        if way == "HTTP/2" and is_for_http2(case):
            await self._http2(seed, case, second)
        else:
            await self._http(seed, case)

    async def _grpc(self, seed: int, case: GrpcCase) -> None:
        self._found.played["gRPC"] += 1
        door, gateway = await asyncio.gather(*(call(each, case) for each in self._channels))
        if door != gateway:
            self._found.add(seed, "gRPC", case, f"{door}\n is not\n{gateway}")

    async def _http(self, seed: int, case: HttpCase) -> None:
        self._found.played["HTTP/1.1" if case.is_strict else "HTTP/1.1, wounded"] += 1
        for patience_s in (_PATIENCE_S, _LONG_S):  # a busy machine gets more time
            ports = (self._ports.door, self._ports.gateway)
            door, gateway = await asyncio.gather(*(talk(port, case, patience_s) for port in ports))
            told = difference(door, gateway, case)
            if told in ("", "parsers"):
                self._found.played["parsers disagree"] += bool(told)
                return
        self._found.add(seed, "HTTP/1.1", (case, case.raw()), told)

    async def _http2(self, seed: int, case: HttpCase, second: Http2) -> None:
        self._found.played["HTTP/2"] += 1
        door = await talk(self._ports.door, case, _LONG_S)
        try:
            gateway = await second.ask(case)
        except (OSError, TimeoutError, h2.exceptions.ProtocolError) as error:
            second.close()
            self._found.add(seed, "HTTP/2", case, repr(error))
            return
        heard = Heard((gateway,), True)
        if told := difference(door, heard, case):
            self._found.add(seed, "HTTP/2", case, told)


async def run(ports: Ports, seeds: range, until: float, stops: bool = False) -> Found:
    """Play cases until the time is over; `stops`: or until the first finding."""
    found, numbers = Found(), iter(seeds)

    async def play_on(players: Players) -> None:
        second = Http2(ports.h2)
        for seed in numbers:
            if time.monotonic() >= until or (stops and found.findings):
                break
            await players.play(seed, second)
        second.close()

    async with Players(ports, found).running() as players, asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(play_on(players))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.edge", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--cases", type=int, default=10**9)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with edges() as ports:
        seeds = range(given.seed, given.seed + given.cases)
        found = asyncio.run(run(ports, seeds, time.monotonic() + given.seconds))
    print(f"seed {given.seed}: {dict(found.played)}, {len(found.findings)} findings")
    print("\n\n".join(found.findings[:20]))
    return bool(found.findings)


if __name__ == "__main__":
    sys.exit(main())
