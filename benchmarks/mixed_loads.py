"""Loads of two kinds of requests at once, for `python -m benchmarks overload`.

The one kind does not wait for what the other one does: it goes past the slow Op, its answer is
kept, or it has the first priority. It is asked for evenly, while of the other one more and more
come. Each is to have what it has alone.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from benchmarks.ask import Question
from benchmarks.overload_rows import ANSWERED, BROKEN, EXPIRED, LATE, REFUSED, Ending, Result
from pipeline.errors import DeadlineError, OverloadedError
from pipeline.frontends.grpc.inference import TIMEOUT
from pipeline.proto import inference_v2_pb2 as v2
from pipeline.proto import pipeline_service_pb2 as pb

_CONNECTIONS = 4
_CLIENTS = 64
_QUICK_PER_S = 50.0
_METHOD_V2 = "/inference.GRPCInferenceService/ModelInfer"
_HOW = {0: ANSWERED, DeadlineError.code: EXPIRED, OverloadedError.code: REFUSED}


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind. `message` of the number of one is what it sends."""

    name: str
    message: Callable[[int], bytes]
    is_v2: bool = False


def _pair(value: str) -> Callable[[int], bytes]:
    def message(number: int) -> bytes:
        return pb.Request(key=["x"], value=[value.replace("%", str(number))]).SerializeToString()

    return message


def _of_level(level: int) -> Callable[[int], bytes]:
    request = v2.ModelInferRequest(model_name="slow", raw_input_contents=[b"\0\0\x80?"])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    request.parameters["priority"].uint64_param = level
    return lambda number: request.SerializeToString()


MIXED: dict[str, tuple[Kind, Kind]] = {
    "cascade": (Kind("quick", _pair("quick")), Kind("slow", _pair("1"))),
    "kept": (Kind("kept", _pair("quick")), Kind("missed", _pair("missed %"))),
    "priorities": (Kind("level 1", _of_level(1), True), Kind("level 2", _of_level(2), True)),
}
"""By the service: who does not wait for the others, and the others."""


class Callers:
    """Asks the service at `port`; used as an async context manager."""

    def __init__(self, port: int) -> None:
        # Else all channels of one process to one address share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(_CONNECTIONS)
        ]
        self._numbers = 0

    async def __aenter__(self) -> Callers:
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def capacity(self, kind: Kind, seconds: float) -> float:
        """Return how many requests a second are answered to callers who wait."""
        counts = await asyncio.gather(*(self._wait(kind, seconds) for _ in range(_CLIENTS)))
        return sum(counts) / seconds

    async def _wait(self, kind: Kind, seconds: float) -> int:
        give_up, count = time.monotonic() + seconds, 0
        while time.monotonic() < give_up:
            how = await self.ask(kind, 10 * seconds)
            count += time.monotonic() < give_up and how == ANSWERED
        return count

    async def offer(
        self, kind: Kind, per_s: float, seconds: float, deadline_s: float
    ) -> list[Ending]:
        """So many requests a second; returns when all have ended."""
        start = time.monotonic()
        asking = []
        for number in range(round(per_s * seconds)):
            due_s = number / per_s
            await asyncio.sleep(start + due_s - time.monotonic())
            asking.append(asyncio.create_task(self._end_of(kind, start, due_s, deadline_s)))
        return await asyncio.gather(*asking)

    async def _end_of(self, kind: Kind, start: float, due_s: float, deadline_s: float) -> Ending:
        how = await self.ask(kind, deadline_s)
        took_s = time.monotonic() - start - due_s
        return Ending(due_s, took_s, LATE if how == ANSWERED and took_s > deadline_s else how)

    async def ask(self, kind: Kind, deadline_s: float) -> str:
        """The deadline is the server's to keep, so that it is the server who says what happened."""
        self._numbers += 1
        channel = self._channels[self._numbers % _CONNECTIONS]
        message = kind.message(self._numbers)
        try:
            if kind.is_v2:
                await channel.unary_unary(_METHOD_V2)(message, timeout=deadline_s)
                return ANSWERED
            call = channel.unary_unary(
                Question.METHOD, response_deserializer=pb.Response.FromString
            )
            metadata = ((TIMEOUT, f"{round(deadline_s * 1e3)}m"),)
            response = await call(message, timeout=10 * deadline_s, metadata=metadata)
            return _HOW.get(response.err_no, BROKEN)
        except grpc.aio.AioRpcError as error:
            if "overloaded" in (error.details() or ""):
                return REFUSED
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return EXPIRED if is_late or "deadline" in (error.details() or "") else BROKEN


async def measure(port: int, kind: str, given: argparse.Namespace) -> list[Result]:
    """One service under all loads."""
    quick, slow = MIXED[kind]
    async with Callers(port) as callers:
        await callers.capacity(quick, 0.2)  # which keeps an answer
        capacity = await callers.capacity(slow, given.calm)
        share = capacity - _QUICK_PER_S if kind == "priorities" else capacity
        results = []
        for factor in given.times:
            loads = (quick, _QUICK_PER_S), (slow, factor * share)
            ends = await asyncio.gather(
                *(callers.offer(*load, given.seconds, given.deadline) for load in loads)
            )
            of_quick = Result(f"{kind}: {quick.name}", _QUICK_PER_S, 1.0, given.seconds, ends[0])
            of_slow = Result(f"{kind}: {slow.name}", share, factor, given.seconds, ends[1])
            results += [of_quick, of_slow]
            print(*(of_quick.row() + of_slow.row()), sep="  ", flush=True)
        return results


def none_refused(results: Sequence[Result]) -> bool:
    """Return whether no request was refused that did not wait for the others."""
    quick = {f"{kind}: {pair[0].name}" for kind, pair in MIXED.items()}
    return not any(
        Counter(ending.how for ending in result.endings)[REFUSED]
        for result in results
        if result.kind in quick
    )
