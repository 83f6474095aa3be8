"""`python -m fuzz.lane`: checks that the fast lane of HTTP does not change any answer.

Each case is one connection: a row of requests, usual and odd, whole and damaged, cut into packets
anywhere. Two HttpFrontends on a virtual clock get the same packets; one of them has a lane. The
fuzzer compares their answers, and whether they close the connection.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

from doubles import run_virtual
from fake_transport import connect
from hostile import mutated

from pipeline.engine.request import RequestTarget, ResponseSink
from pipeline.errors import OverloadedError
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.server import HttpFrontend
from pipeline.proto.pipeline.plain import PlainRequest, pack_plain
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response

_LIMIT = 4000  # of a body
_END_S = 200  # more than any timeout
_DATE = re.compile(rb"date: [^\r]*\r\n")
_CLOSE = b"connection: close\r\n"
_FIRST_LINE = re.compile(rb"(?=HTTP/1\.1 [1-5]\d\d )")


# Requests -------------------------------------------------------------------------------

_PATHS = ["/s/m", "/s/m", "/s/m", "/s/slow", "/s/over", "/s/large", "/s/none", "/s/bug", "/s/error"]
_ODD_PATHS = [
    "/", "/s", "/s/m/", "//m", "/s/m?x=1", "/s%2fm/x", "/s/%6d", "/v2/models", "/v2/m", "/health/x",
    "/health/live", "http://h/s/m", "*", "/s/m#f", "/s/" + "n" * 300, "/./..", "/s/m\t", "/é/m",
]  # fmt: skip
_USUAL = [
    "Host: h", "User-Agent: u/1", "Accept: */*", "Accept-Encoding: gzip, deflate", "accept:x",
    "Content-Type: application/json", "Connection: keep-alive", "connection:Keep-Alive",
    "X-Request-Id: 7", "x-user: anna", "Cookie: a=b", "Traceparent: 00-ab-cd-01",
    "Grpc-Timeout: 5S",
]  # fmt: skip
_ODD = [
    "Connection: close", "Connection: keep-alive, x", "Connection: upgrade", "Upgrade: h2c",
    "Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Content-Length: 3",
    "Content-Length: 0", "Content-Length: +3", "Content-Length: 3, 3", "Content-Length : 3",
    "Content-Encoding: gzip", "Content-Encoding: identity", "Expect: 100-continue", "Expect: x",
    "Origin: http://evil", "Grpc-Timeout: x", "A: b\r\n c", "A: b\r\n\tc", "A : b", "A b", ": x",
    "A:", "A: \x01", "Te: trailers", "Keep-Alive: timeout=5", "Proxy-Connection: close",
    "Content-Length: 99999", "X-User: é", "x-user: bob", "A: b\rc", "A: b\n", "Host: i",
    "Http2-Settings: x", "A: " + "a" * 9000,
]  # fmt: skip
_BODIES = [
    b"", b"{}", b'{"key":["a"],"value":["1"]}', b'{"key": ["a", "b"], "value": ["1", "\xc3\xa9"]}',
    b'{"key":["a"],"value":["1"],"logid":5}', b'{"key":["a"]}', b"{", b"[]", b'{"key":[1]}',
    b'{"key":["a"],"value":["\\ud800"]}', b'{"tensors":[{"name":"t","int_data":[1]}]}', b"\r\n\r\n",
    b"POST /s/m HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b'{"key":["k"],"value":["' + b"v" * 3000
    + b'"]}', b"x" * 5000, b'{"logid":"12","clientip":"1.2.3.4"}', b'{"appid":1,"value":null}',
]  # fmt: skip


def _message(draw: random.Random) -> bytes:
    """Return a request, mostly a plain one."""
    is_odd = draw.random() < 0.15
    method = draw.choice(["GET", "HEAD", "PUT", "post", "OPTIONS"]) if is_odd else "POST"
    path = draw.choice(_ODD_PATHS if draw.random() < 0.06 else _PATHS)
    version = draw.choice(["1.0", "1.2", "2.0"]) if draw.random() < 0.03 else "1.1"
    headers = draw.sample(_USUAL, draw.randrange(5))
    if draw.random() < 0.12:
        headers.insert(draw.randrange(len(headers) + 1), draw.choice(_ODD))
    body = draw.choice(_BODIES)
    if "Transfer-Encoding: chunked" in headers and draw.random() < 0.8:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif draw.random() < 0.97:
        headers.insert(draw.randrange(len(headers) + 1), f"Content-Length: {len(body)}")
    head = "\r\n".join([f"{method} {path} HTTP/{version}", *headers, "", ""]).encode("latin-1")
    return head + body


@dataclass(frozen=True)
class Connection:
    """The packets of one caller, each with the turns of the event loop after it."""

    packets: tuple[tuple[bytes, int], ...]


def generate(seed: int) -> Connection:
    """Return the case of a seed."""
    draw = random.Random(seed)
    messages = [_message(draw) for _ in range(draw.choice((1, 1, 2, 3, 6)))]
    data = b"".join(messages)
    if draw.random() < 0.25:
        data = mutated(data, draw)
    cuts = set()
    kind = draw.choice(("whole", "messages", "anywhere", "bytes"))
    if kind == "messages":  # with heads apart from bodies, as many clients do
        at = 0
        for message in messages:
            cuts |= {at, at + message.find(b"\r\n\r\n") + 4}
            at += len(message)
    elif kind == "anywhere":
        cuts = {draw.randrange(len(data) + 1) for _ in range(draw.randrange(1, 8))}
    elif kind == "bytes" and len(data) < 1500:
        cuts = set(range(len(data)))
    ends = sorted({cut for cut in cuts if 0 < cut < len(data)} | {len(data)})
    packets, at = [], 0
    for end in ends:
        packets.append((data[at:end], draw.choice((0, 0, 1, 3, 30))))
        at = end
    return Connection(tuple(packets))


# Servers --------------------------------------------------------------------------------


class _Handle:
    def cancel(self) -> None:
        pass


class Echo:
    """`Engine.begin`, which answers with everything that it receives."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(
        self, raw: Any, timeout_s: float | None, target: RequestTarget | None, sink: ResponseSink
    ) -> _Handle:
        self.begun += 1
        if raw.method == "over":
            raise OverloadedError("server is overloaded", 3)
        if raw.method == "bug":
            raise ValueError("a bug")
        answer = self._answer(raw, timeout_s, target)
        if raw.method == "slow":
            asyncio.get_running_loop().call_later(0.5, sink.end, answer)
        else:
            sink.end(answer)
        return _Handle()

    def _answer(self, raw: Any, timeout_s: float | None, target: RequestTarget | None) -> Any:
        if raw.method == "error":
            return Response(err_no=5, err_msg="no")
        if raw.method == "none":
            return {"not": "a Response"}
        info = target.info if target is not None else None
        told = {
            "pairs": "&".join(map("=".join, zip(raw.key, raw.value, strict=False))),
            "told": f"{raw.name} {raw.method} {raw.logid} {raw.clientip} {len(raw.tensors)}",
            "time": str(timeout_s),
            "trace": target.traceparent if target is not None else "",
            "headers": str(sorted(info.headers.items())) if info is not None else "",
        }
        if raw.method == "large":
            return LargeResponse(Response(key=["large"], value=["x" * 70_000]))
        if type(raw) is PlainRequest:
            return pack_plain(told)
        return Response(key=told.keys(), value=told.values())


@dataclass(frozen=True)
class Heard:
    """The answers that a caller gets, without dates; `begun` counts requests to the engine."""

    answers: tuple[bytes, ...]
    has_ended: bool
    begun: int


class Frontends:
    """Two running HttpFrontends, with and without a lane, as a context manager."""

    def __init__(self) -> None:
        self._echo = Echo()
        begin, self._frontends = self._echo.begin, []
        for has_lane in (True, False):
            frontend = HttpFrontend(
                begin, "127.0.0.1", 0, _LIMIT, takes_trace=True, is_plain=has_lane,
                forwarding=HeaderForwarding("x-.*"),
            )  # fmt: skip
            if not has_lane:
                frontend._listener.heads = HeadMemory(())
            self._frontends.append(frontend)

    async def __aenter__(self) -> Frontends:
        for frontend in self._frontends:
            await frontend.start(is_ready=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        for frontend in self._frontends:
            await frontend.stop(0.0)

    async def play(self, case: Connection) -> list[Heard]:
        """Return the answers of both, with a lane first."""
        return [await self._play(frontend, case) for frontend in self._frontends]

    async def _play(self, frontend: HttpFrontend, case: Connection) -> Heard:
        before = self._echo.begun
        transport = connect(frontend)
        for packet, rounds in case.packets:
            while not transport.is_reading and not transport.has_ended:
                await transport.reads_again.wait()
            if transport.has_ended:
                break
            transport.send(packet)
            for _ in range(rounds):
                await asyncio.sleep(0)
        for _ in range(_END_S):
            if transport.is_over:
                break
            await asyncio.sleep(1.0)
        answers = _answers(_DATE.sub(b"", transport.written))
        heard = Heard(answers, transport.has_ended, self._echo.begun - before)
        transport.leave()
        await asyncio.sleep(0)
        return heard


def _answers(said: bytes) -> tuple[bytes, ...]:
    """Split at each status line; none of our bodies contains one."""
    return tuple(filter(None, _FIRST_LINE.split(said)))


# Comparison ---------------------------------------------------------------------------


def difference(lane: Heard, other: Heard) -> str:
    """Return the difference; "" if there is none.

    An error that is answered before the body has come ends the connection. With and without a
    lane, that depends on when the packets come.
    """
    shorter, longer = sorted((lane, other), key=lambda heard: len(heard.answers))
    most = len(shorter.answers)
    is_alike = list(map(_unclosed, shorter.answers)) == list(map(_unclosed, longer.answers[:most]))
    if not (most < len(longer.answers) and shorter.answers and _ends_early(shorter.answers[-1])):
        is_alike &= most == len(longer.answers)
        is_alike &= (lane.has_ended, lane.begun) == (other.has_ended, other.begun)
    return "" if is_alike else f"{lane}\n is not\n{other}"


def _ends_early(answer: bytes) -> bool:
    return _CLOSE in answer and not answer.startswith(b"HTTP/1.1 200 ")


def _unclosed(answer: bytes) -> bytes:
    return answer.replace(_CLOSE, b"")


async def run(
    seeds: range, until: float | None = None, stops: bool = False
) -> tuple[int, list[str]]:
    """Return the number of cases, and the findings; `stops`: stop at the first one."""
    found, played = [], 0
    async with Frontends() as frontends:
        for seed in seeds:
            if (until is not None and time.monotonic() >= until) or (found and stops):
                break
            played += 1
            case = generate(seed)
            lane, other = await frontends.play(case)
            if told := difference(lane, other):
                sent = b"".join(packet for packet, _ in case.packets)
                found.append(f"seed {seed}: {sent[:2000]!r}\n{told}")
    return played, found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.lane", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--cases", type=int, default=10**9)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(given.seed, given.seed + given.cases)
    played, found = run_virtual(run(seeds, time.monotonic() + given.seconds))
    print(f"seed {given.seed}: {played} connections, {len(found)} findings")
    print("\n".join(found[:10]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
