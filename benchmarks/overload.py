"""`python -m benchmarks overload`: what a server answers in time that is asked for too much.

Its capacity is measured first, by callers who wait for their answers. Then requests come at even
distances, whatever becomes of them, each with a deadline. Exit status 1: of what could be answered
in time too little was.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.ask import Question
from benchmarks.process import running
from benchmarks.report import machine, table, write
from pipeline.frontends.grpc.inference import TIMEOUT
from pipeline.proto import pipeline_service_pb2 as pb

_RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"
_BEGIN = "<!-- overload: written by `python -m benchmarks overload --write` -->"

KINDS = ("threads", "batches", "diamond")
ANSWERED, LATE, REFUSED, EXPIRED, BROKEN = "answered", "late", "refused", "expired", "broken"

_CLIENTS = 64
_CONNECTIONS = 4
_START_S = 1.0  # before what is answered counts: a server has to see what comes
_LEAST = 0.9
_MESSAGE = pb.Request(key=["x"], value=["1"]).SerializeToString()


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a request. The times are in s, from the load's beginning."""

    came_s: float
    took_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Result:
    """`capacity` requests a second; `factor` times as many came for `seconds`."""

    kind: str
    capacity: float
    factor: float
    seconds: float
    endings: Sequence[Ending]

    @property
    def goodput(self) -> float:
        """Answers a second that came in time."""
        ends = [ending.came_s + ending.took_s for ending in self._that_were(ANSWERED)]
        return sum(_START_S <= end < self.seconds for end in ends) / (self.seconds - _START_S)

    @property
    def is_met(self) -> bool:
        return self.goodput >= _LEAST * min(1.0, self.factor) * self.capacity

    def row(self) -> list[str]:
        counts = Counter(ending.how for ending in self.endings)
        return [
            self.kind,
            f"{self.capacity:.0f}",
            f"{self.factor:g}",
            f"{self.goodput:.0f}",
            f"{self.goodput / self.capacity:.2f}",
            *(f"{counts[how]:,}" for how in (REFUSED, EXPIRED, LATE, BROKEN)),
            _p99_ms(self._that_were(ANSWERED)),
            _p99_ms(self._that_were(REFUSED)),
        ]

    def _that_were(self, how: str) -> list[Ending]:
        return [ending for ending in self.endings if ending.how == how]


_COLUMNS = (
    "service", "capacity/s", "times it came", "in time/s", "of the capacity", "refused", "expired",
    "late", "broken", "p99 ms", "p99 ms of a refusal",
)  # fmt: skip


class Callers:
    """Asks the service at `port`; used as an async context manager."""

    def __init__(self, port: int) -> None:
        # Else all channels of one process to one address share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(_CONNECTIONS)
        ]
        self._calls = [
            channel.unary_unary(Question.METHOD, response_deserializer=pb.Response.FromString)
            for channel in self._channels
        ]

    async def __aenter__(self) -> Callers:
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def capacity(self, seconds: float) -> float:
        """Requests a second that are answered to callers who wait."""
        counts = await asyncio.gather(*(self._wait(number, seconds) for number in range(_CLIENTS)))
        return sum(counts) / seconds

    async def _wait(self, number: int, seconds: float) -> int:
        give_up, count = time.monotonic() + seconds, 0
        while time.monotonic() < give_up:
            response = await self._calls[number % _CONNECTIONS](_MESSAGE)
            count += time.monotonic() < give_up and not response.err_no
        return count

    async def offer(self, per_s: float, seconds: float, deadline_s: float) -> list[Ending]:
        """So many requests a second; returns when all have ended."""
        start = time.monotonic()
        asking = []
        for number in range(round(per_s * seconds)):
            due_s = number / per_s
            await asyncio.sleep(start + due_s - time.monotonic())
            asking.append(asyncio.create_task(self._ask(number, start, due_s, deadline_s)))
        return await asyncio.gather(*asking)

    async def _ask(self, number: int, start: float, due_s: float, deadline_s: float) -> Ending:
        """The deadline is the server's to keep, so that it is the server who says what happened."""
        metadata = ((TIMEOUT, f"{round(deadline_s * 1e3)}m"),)
        call = self._calls[number % _CONNECTIONS]
        try:
            response = await call(_MESSAGE, timeout=10 * deadline_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            is_refused = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            how = REFUSED if is_refused else BROKEN
        else:
            how = {0: ANSWERED, 6000: EXPIRED}.get(response.err_no, BROKEN)
        took_s = time.monotonic() - start - due_s
        return Ending(due_s, took_s, LATE if how == ANSWERED and took_s > deadline_s else how)


async def measure(port: int, kind: str, given: argparse.Namespace) -> list[Result]:
    """One service under all loads."""
    async with Callers(port) as callers:
        capacity = await callers.capacity(given.calm)
        results = []
        for factor in given.times:
            endings = await callers.offer(factor * capacity, given.seconds, given.deadline)
            results.append(Result(kind, capacity, factor, given.seconds, endings))
            print(*results[-1].row(), sep="  ", flush=True)
        return results


def markdown(results: Sequence[Result], deadline_s: float) -> str:
    is_met = all(result.is_met for result in results)
    verdict = "met" if is_met else "**missed**"
    return (
        f"{machine()}. Deadline {deadline_s:g} s; {results[0].seconds:g} s of each load, over "
        f"gRPC.\n\n{table(_COLUMNS, [result.row() for result in results])}\n\n"
        f"At least {_LEAST:g} of the capacity in time, whatever comes: {verdict}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overload", description=__doc__)
    parser.add_argument("--times", type=float, nargs="+", default=[0.9, 2.0, 10.0], metavar="N")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--calm", type=float, default=4.0, help="seconds to measure the capacity")
    parser.add_argument("--deadline", type=float, default=2.0, metavar="S")
    parser.add_argument("--write", action="store_true", help=f"into {_RELIABILITY.name}")
    given = parser.parse_args(arguments)
    results = []
    for kind in KINDS:
        with running("overload", kind) as service:
            service.first_answer(lambda port=service.grpc_port: asyncio.run(_first(port)))
            results += asyncio.run(measure(service.grpc_port, kind, given))
    report = markdown(results, given.deadline)
    print(report)
    if given.write:
        write(report, _RELIABILITY, _BEGIN)
    return 0 if all(result.is_met for result in results) else 1


async def _first(port: int) -> None:
    """OSError: it does not answer yet."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            await channel.unary_unary(Question.METHOD)(_MESSAGE, timeout=5)
        except grpc.aio.AioRpcError as error:
            raise OSError(error.details()) from error


def _p99_ms(endings: Sequence[Ending]) -> str:
    times = sorted(ending.took_s for ending in endings)
    return f"{times[int(0.99 * (len(times) - 1))] * 1e3:.0f}" if times else "-"
