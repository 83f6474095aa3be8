"""Servers whose Ops count as quick, or as not, and what is asked of them."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from doubles import answers

from pipeline import PipelineServer, ResponseOp
from pipeline.engine.request import RequestTarget
from pipeline.engine.trips import trip, trips
from pipeline.proto.pipeline_service_pb2 import Request

PATIENCE_S = 20.0
TIMED_OUT = 6000


@pytest.fixture
def a_trip_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: none stops where another one had the processor meanwhile."""
    monkeypatch.setattr(trip, "_LONGEST_NS", 10**12)


@pytest.fixture
def steps_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is taken out of its trip."""
    monkeypatch.setattr(trips, "_STEP_S", 60.0)


@contextlib.asynccontextmanager
async def quick_server(
    response_op: ResponseOp, is_quick: bool = True, **config: Any
) -> AsyncIterator[PipelineServer]:
    """A server without doors for HTTP; `is_quick`: its Ops are."""
    server = PipelineServer("quick")
    server.set_response_op(response_op)
    server.prepare_server(yml_dict={"rpc_port": 0, "host": "127.0.0.1", **config})
    async with server:
        set_pace(server, is_quick)
        yield server


def set_pace(server: PipelineServer, is_quick: bool = True) -> None:
    """Set the pace of all its Ops, and group them again."""
    engine = server.executor
    for stop in (*engine.executor.nodes.values(), engine._unpacker, engine._packer):
        stop.pace.is_quick = is_quick
    engine.executor.trips.groups.form()


def groups(server: PipelineServer) -> list[tuple[str, ...]]:
    """The names in each of its groups, in order."""
    return list(dict.fromkeys(server.executor.executor.trips.groups.names().values()))


async def ask(
    server: PipelineServer,
    x: str = "1",
    timeout_s: float | None = None,
    target: RequestTarget | None = None,
    log_id: int = 0,
) -> Any:
    raw = Request(key=["x"], value=[x], logid=log_id)
    return await server.executor.handle(raw, timeout_s, target)


def value_of(answer: Any) -> str:
    """Return the `x` of an answer, which has to be a success."""
    return answers(answer)["x"]


class Hangs:
    """Called with `x`, or an Op and `x`: "hang" and its other words wait for `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.began = threading.Event()
        self.calls: Counter[str] = Counter()

    def __call__(self, *called: Any) -> None:
        x = called[-1]
        self.calls[x] += 1
        if x.startswith("hang"):
            self.began.set()
            assert self.release.wait(PATIENCE_S)


def counted(server: PipelineServer) -> dict[str, tuple[int, tuple[int, ...], int, int]]:
    """Of each model its counts in Triton's schema, without times; executions last."""
    journal = server.executor._observers.journal
    journal.flush()
    return {
        model.name: (
            model.success_count,
            tuple(model.fail_counts),
            model.inference_count,
            model.execution_count,
        )
        for sink in journal.sinks
        for model in getattr(sink, "models", ())
    }
