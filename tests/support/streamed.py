"""Ops that answer in parts, and servers of them behind each edge."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from doubles import server_for, wait_until
from streaming import Event

from pipeline import Op, PipelineServer, RequestOp
from pipeline.data import ANY, Tensor

EDGES = ("embedded", "gateway")
"""Whether gRPC and HTTP come from the server itself or from the gateway before it."""


class Parts(Op):
    """Yields `n` texts "0", "1", ..., of `size` characters at least; the request says more.

    `fail`: raise before that one. `hold`: wait before that one until `go` is set. `die`: end the
    worker's process before that one. Without "n" there is no end. `SEEN` tells what became of them.
    """

    @classmethod
    def of(cls, name: str = "parts") -> Parts:
        return cls(name, [RequestOp()], concurrency=2)

    def process(self, feed_batch: Any, log_id: Any) -> Iterator[dict[str, str]]:
        (asked,) = feed_batch
        most, fail, hold = (int(asked.get(name, -1)) for name in ("n", "fail", "hold"))
        number = 0
        SEEN.begun.set()
        try:
            while number != most:
                if number == fail:
                    raise ValueError("broken in the middle")
                if number == hold:
                    SEEN.go.wait(30)
                if number == int(asked.get("die", -1)):
                    os.kill(os.getpid(), signal.SIGKILL)
                SEEN.made += 1
                yield {"text": f"{number}".ljust(int(asked.get("size", 0)), ".")}
                number += 1
        finally:
            SEEN.closed.set()


class Seen:
    """The endings of the generators of `Parts` since `clear`, in threads or processes."""

    def __init__(self) -> None:
        self.begun = Event()
        self.closed = Event()
        self.go = Event()
        self._made = memoryview(mmap.mmap(-1, 8)).cast("q")

    @property
    def made(self) -> int:
        return self._made[0]

    @made.setter
    def made(self, count: int) -> None:
        self._made[0] = count

    def clear(self) -> None:
        for event in (self.begun, self.closed, self.go):
            event.clear()
        self.made = 0

    def made_at_rest(self) -> int:
        """Return how many parts were made when no more came: every buffer is full."""
        before = -1

        def rests() -> bool:
            nonlocal before
            before, last = self.made, before
            self.closed.wait(0.2)
            return before == last

        wait_until(rests)
        return before


SEEN = Seen()


@pytest.fixture
def seen() -> Iterator[Seen]:
    """The endings of the generators of this test; no generator is left waiting."""
    SEEN.clear()
    yield SEEN
    SEEN.go.set()


class AskedByName(RequestOp):
    """Declares what `Parts` reads, for callers of v2."""

    input_tensors = tuple(Tensor(name, "BYTES", (1,)) for name in ("n", "fail", "die", "size"))


class NamedParts(Parts):
    """`Parts` with tensors, so that it is also a model of v2."""

    input_tensors = AskedByName.input_tensors
    output_tensors = (Tensor("text", "BYTES", (1,)),)


def streaming_server(edge: str, last_op: Op | None = None, **config: Any) -> PipelineServer:
    """A server of `Parts`; use it as a context manager."""
    settings = {"errors": {"details": "full"}, **config}  # the same, whichever door it has
    return server_for(last_op or Parts.of(), edge=edge, **settings)


@contextlib.contextmanager
def temporary_folder() -> Iterator[None]:
    """A folder with a short name for what is temporary, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


class Read(RequestOp):
    """Declares what `Repeat` reads."""

    input_tensors = (Tensor("IN", "INT32", (ANY,)), Tensor("ASKED", "BYTES", (1,)))


class Repeat(Op):
    """Answers with each element of IN, and its index; ASKED is "", "fail", "hold" or "endless".

    It fails, or waits until `go` is set, before its last element.
    """

    input_tensors = Read.input_tensors
    output_tensors = (Tensor("OUT", "INT32", (1,)), Tensor("IDX", "UINT32", (1,)))

    def process(self, feed_batch: Any, log_id: Any) -> Iterator[dict[str, Any]]:
        (asked,) = feed_batch
        elements, how = asked["IN"], asked["ASKED"]
        SEEN.begun.set()
        try:
            for number, element in enumerate(itertools.cycle(elements) if elements.size else ()):
                if number == elements.size - 1 and how == "hold":
                    SEEN.go.wait(30)
                if number == elements.size - 1 and how == "fail":
                    raise ValueError("broken in the middle")
                if number == elements.size and how != "endless":
                    break
                SEEN.made += 1
                yield {"OUT": element.reshape(1), "IDX": np.array([number], np.uint32)}
        finally:
            SEEN.closed.set()


class Twice(Op):
    """Answers once, with IN doubled."""

    input_tensors = Read.input_tensors
    output_tensors = (Tensor("OUT", "INT32", (ANY,)),)

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        (asked,) = input_dicts.values()
        return {"OUT": asked["IN"] * 2}, False, None, ""


class Both(Op):
    """Reads a stream and a single answer: each part, and the double of its elements' sum."""

    output_tensors = (Tensor("OUT", "INT32", (1,)), Tensor("IDX", "UINT32", (1,)))

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        return input_dicts["repeat"], False, None, ""


def repeating_server(edge: str, **config: Any) -> PipelineServer:
    """A server of the models "svc" and "repeat", which stream, and "twice", which does not."""
    read = Read()
    repeat, twice = Repeat("repeat", [read], concurrency=4), Twice("twice", [read])
    settings = {"errors": {"details": "full"}, **config}  # the same, whichever door it has
    return server_for(Both("both", [repeat, twice]), edge=edge, **settings)


@pytest.fixture(scope="module", params=EDGES)
def repeating(request: Any, module_logs: None) -> Iterator[PipelineServer]:
    """A `repeating_server` behind each edge."""
    with temporary_folder(), repeating_server(request.param) as running:
        yield running
