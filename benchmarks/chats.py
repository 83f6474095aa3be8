"""`python -m benchmarks.chats`: streams of chats here and by hand on Starlette, in turns.

Each caller asks for one answer behind the other. Told are the time to the first word, the time
between two words, words a second and the server's CPU time for a word: of one caller, of
`--callers` at `--rate` words a second each, and of 32 callers of a model that takes no time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection

import orjson

from benchmarks.process import Service, running

_PATH = "/v1/chat/completions"
_ASK = orjson.dumps(
    {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "continue"}]}
)
_HEAD = (
    f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(_ASK)}\r\n\r\n"
).encode()
_WORD, _END = b'"word "', b"[DONE]"
_FREE_CALLERS = 32


@dataclass
class Tally:
    """Times that callers saw, in seconds, and the words."""

    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    words: int = 0


class Caller(asyncio.Protocol):
    """A connection that repeats its request after each answer, until `until`."""

    def __init__(self, seen: Tally, until: float) -> None:
        self._seen = seen
        self._until = until
        self._tail = b""
        self._last = 0.0
        self._is_first = True
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._last, self._is_first = time.perf_counter(), True
        self._transport.write(_HEAD + _ASK)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._tail + data
        if words := data.count(_WORD):
            seen = self._seen
            (seen.firsts if self._is_first else seen.gaps).append(now - self._last)
            seen.words += words
            self._is_first, self._last = False, now
        has_ended = _END in data
        cut = max(data.rfind(b"}"), data.rfind(_END) + len(_END) - 1)
        self._tail = data[cut + 1 :][-len(_END) - len(_WORD) :]
        if has_ended:
            if now < self._until:
                self._ask()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _call(port: int, callers: int, seconds: float, spread_s: float) -> Tally:
    seen, loop = Tally(), asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    made = []
    for _ in range(callers):  # they do not begin all at once
        _, caller = await loop.create_connection(lambda: Caller(seen, until), "127.0.0.1", port)
        made.append(caller)
        await asyncio.sleep(spread_s / callers)
    await asyncio.gather(*(caller.ended for caller in made))
    return seen


def _is_ready(service: Service) -> None:
    connection = HTTPConnection("127.0.0.1", service.http_port, timeout=60)
    connection.request("POST", _PATH, _ASK, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200 or _END not in body:
        raise OSError(f"{answer.status}: {body[:200]!r}")


def _row(module: str, rate: int, words: int, callers: int, seconds: float) -> dict[str, float]:
    with running(module, str(rate), str(words)) as service:
        service.first_answer(lambda: _is_ready(service))
        used, began = service.usage().cpu_s, time.perf_counter()
        spread_s = words / rate if rate else 0.1
        seen = asyncio.run(_call(service.http_port, callers, seconds, spread_s))
        took_s, cpu_s = time.perf_counter() - began, service.usage().cpu_s - used
    gaps = seen.gaps or [0.0]
    return {
        "first word p50, ms": statistics.median(seen.firsts) * 1000,
        "p99": _p99(seen.firsts) * 1000,
        "between words p50, ms": statistics.median(gaps) * 1000,
        "p99 ": _p99(gaps) * 1000,
        "words/s": seen.words / took_s,
        "CPU a word, us": cpu_s / seen.words * 1e6,
    }


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chats", description=__doc__)
    parser.add_argument("--callers", type=int, default=256)
    parser.add_argument("--rate", type=int, default=32, help="words a second of a caller")
    parser.add_argument("--words", type=int, default=64, help="of an answer")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    loads = {
        "one caller": (options.rate, 1),
        f"{options.callers} callers": (options.rate, options.callers),
        f"{_FREE_CALLERS} callers, no pause": (0, _FREE_CALLERS),
    }
    services = {"pipeline": "chat", "Starlette": "chat_starlette"}
    for load, (rate, callers) in loads.items():
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in services}
        for at in range(options.rounds):
            for name in sorted(services, reverse=at % 2 == 1):
                row = _row(services[name], rate, options.words, callers, options.seconds)
                rows[name].append(row)
        print(f"{load}:")
        for name, measured in rows.items():
            medians = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
            print(f"  {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in medians.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
