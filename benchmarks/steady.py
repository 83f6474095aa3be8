"""A steady load over gRPC: so many requests a second, whatever becomes of them; all are checked."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from benchmarks.ask import Question
from benchmarks.services.chaos import answer_to
from pipeline.proto import codec
from pipeline.proto import pipeline_service_pb2 as pb

ANSWERED = "answered"
WRONG = "wrong answer"
UNENDED = "neither answer nor error"

# What the text of an error says of its cause, and under which name it is counted.
_CAUSES = {
    "killed by SIGSEGV": "worker crashed",
    "killed by SIGKILL": "worker killed",
    "was stopped (SIGSTOP)": "worker stopped",
    "vanished with its zygote": "worker vanished with its zygote",
    "exceeded retry count": "timeout of the Op",
    "deadline passed": "deadline of the request",
    "end again and again": "crash loop",
    "is overloaded": "overloaded",
}

_SIZES = (10, 100, 1_000, 10_000, 64 * 1024, 256 * 1024)
_WEIGHTS = (20, 20, 30, 20, 8, 2)
_CONNECTIONS = 4
_WAIT_S = 2.0  # beyond the deadline, for what is never answered to count as that


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending of a request. `kind`: ANSWERED, or the name of the error."""

    number: int
    took_s: float
    kind: str
    text: str = ""


def explains(ending: Ending) -> bool:
    """Return whether the ending is an error whose text gives the reason."""
    return ending.kind in _CAUSES.values()


class Steady:
    """Clients of the service at `port`; used as an async context manager.

    Time is taken from when a request was due, so that one which is sent late counts as slow.
    """

    def __init__(self, port: int, seed: int, per_s: float, deadline_s: float) -> None:
        self._port = port
        self._seed = seed
        self._per_s = per_s
        self._deadline_s = deadline_s
        largest = max(_SIZES)
        self._material = random.Random(seed).randbytes(2 * largest)
        self._channels: list[grpc.aio.Channel] = []
        self._calls: list[Callable[..., Awaitable[pb.Response]]] = []

    async def __aenter__(self) -> Steady:
        # Else all channels of one process to one address share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        for _ in range(_CONNECTIONS):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options)
            self._channels.append(channel)
            self._calls.append(
                channel.unary_unary(Question.METHOD, response_deserializer=pb.Response.FromString)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    async def ask(self, numbers: Iterable[int]) -> list[Ending]:
        """One request for each number, evenly spaced; returns when all have ended."""
        start = time.monotonic()
        asking = []
        for place, number in enumerate(numbers):
            due = start + place / self._per_s
            await asyncio.sleep(due - time.monotonic())
            asking.append(asyncio.create_task(self._ask(number, due)))
        return await asyncio.gather(*asking)

    async def _ask(self, number: int, due: float) -> Ending:
        content = self._content(number)
        kind, text = await self._outcome(number, content)
        return Ending(number, time.monotonic() - due, kind, text)

    async def _outcome(self, number: int, content: bytes) -> tuple[str, str]:
        tensors = [
            codec.numpy_to_tensor("number", np.array([number])),
            codec.numpy_to_tensor("content", content),
        ]
        message = pb.Request(logid=max(number, 0), tensors=tensors).SerializeToString()
        call = self._calls[number % _CONNECTIONS]
        try:
            response = await call(message, timeout=self._deadline_s + _WAIT_S)
        except grpc.aio.AioRpcError as error:
            is_over = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            text = f"{error.code().name}: {error.details()}"
            return (UNENDED if is_over else _cause(text)), text
        if response.err_no:
            text = f"{response.err_no}: {response.err_msg}"
            return _cause(text), text
        return self._checked(number, content, codec.decode_tensors(response.tensors))

    def _checked(self, number: int, content: bytes, answer: dict[str, Any]) -> tuple[str, str]:
        is_right = (
            answer.keys() == {"number", "content"}
            and answer["number"].tolist() == [number]
            and answer["content"] == answer_to(content)
        )
        return (ANSWERED, "") if is_right else (WRONG, f"{number}: {answer}")

    def _content(self, number: int) -> bytes:
        rng = random.Random(f"{self._seed} {number}")
        (size,) = rng.choices(_SIZES, _WEIGHTS)
        start = rng.randrange(len(self._material) - size)
        return self._material[start : start + size]


def _cause(text: str) -> str:
    for words, name in _CAUSES.items():
        if words in text:
            return name
    return f"unexplained: {re.sub(r'[0-9]+', 'N', text)[:100]}"
