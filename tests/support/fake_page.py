"""A server that only plays: made-up requests go through real sinks to a real page."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.journal.journal import NO_WORKER, PIPELINE, REQUEST, SPAN, Outcome, Rows
from pipeline.engine.state import EngineState, OpState, WorkersState
from pipeline.frontends.dashboard.recent import LastMinute, Recording, SlowRequestLog
from pipeline.frontends.dashboard.routes import Dashboard
from pipeline.frontends.http.server import HttpFrontend
from pipeline.observe.snapshot import Snapshot
from pipeline.observe.statistics import Statistics
from pipeline.system.event_loop import LoopThread

MS = 10**6


def rows(dtype: np.dtype, *listed: Sequence[int]) -> Rows:
    """An array of SPAN or REQUEST."""
    return np.array([tuple(row) for row in listed], dtype)


def turn(
    data_id: int,
    op: int,
    *,
    at: int,
    queue: int = 0,
    stages: Sequence[int] = (0, MS, 0),
    outcome: int = Outcome.OK,
    batch: int | None = None,
    rows: int = 1,
    worker: int = 0,
    late: int = 0,
) -> tuple[int, ...]:
    """A row of SPAN that was ready `at` ns; `batch` is the data id if it is not said.

    The event loop is `late` to take the result.
    """
    start = at + queue
    prepared, processed, end = np.cumsum([start + stages[0], *stages[1:]]).tolist()
    number = data_id if batch is None else batch
    times = (at, start, prepared, processed, end, end + late)
    return (op, worker, number, data_id, rows, outcome, *times)


def never_ran(data_id: int, op: int, *, at: int, end: int, outcome: int) -> tuple[int, ...]:
    """A row of SPAN that ended while it waited."""
    return (op, NO_WORKER, -1, data_id, 1, outcome, at, end, end, end, end, end)


def request(
    data_id: int,
    *,
    at: int,
    took: int,
    outcome: int = Outcome.OK,
    code: int = 0,
    waited: int = 0,
    unpacked: int = 0,
    packed: int = 0,
    stages: Sequence[int] = (0, 0, 0),
) -> tuple[int, ...]:
    """A row of REQUEST."""
    begun = at + waited + unpacked
    times = (at, at + waited, begun, at + took - packed, at + took)
    return (data_id, PIPELINE, 1, outcome, code, *times, *stages)


def graph_of(*edges: tuple[str, str]) -> Graph:
    """A graph of Ops by (source, target): "" is the RequestOp as source; one Op is the last."""
    request_op = RequestOp()
    ops: dict[str, Op] = {}
    for _, name in edges:
        if name not in ops:
            inputs = [ops.get(source, request_op) for source, target in edges if target == name]
            ops[name] = Op(name, inputs)
    return build_graph(ResponseOp([list(ops.values())[-1]]))


@dataclass
class Played:
    """A server without an engine: `fold` makes things happen, `states` are how its Ops stand."""

    graph: Graph
    name: str = "shop"
    copy: int = 0
    now_ns: int = 10**15
    states: dict[str, OpState] = field(default_factory=dict)
    is_ready: bool = True
    inside: int = 0
    waiting: int = 0
    accepted: int = 0
    rejected: int = 0
    questions: int = 0

    def __post_init__(self) -> None:
        self.names = [op.name for op in self.graph.ops]
        self.statistics = Statistics(self.name, [f"model of {name}" for name in self.names])
        self.recent = SlowRequestLog(self.names, clock_ns=lambda: self.now_ns)
        self.recording = Recording(self.copy)
        self.minute = LastMinute(lambda: self.now_ns)
        self._lock = threading.Lock()  # tests fold, the page's loop asks

    def fold(
        self, turns: Sequence[Sequence[int]] = (), requests: Sequence[Sequence[int]] = ()
    ) -> None:
        """These turns and requests happen."""
        folded = rows(SPAN, *turns), rows(REQUEST, *requests)
        with self._lock:
            for sink in (self.statistics, self.recent, self.recording, self.minute):
                sink.notify(*folded)
            self.accepted += len(requests)

    def snapshot(self) -> Snapshot:
        ops = [self.states.get(name) or op_state(name) for name in self.names]
        engine = EngineState(
            self.is_ready, self.inside, self.waiting, self.accepted, self.rejected, ops
        )
        with self._lock:
            slowest, failed = self.recent.slowest(), self.recent.failures()
            models, minute = self.statistics.models, self.minute.series()
            return Snapshot(self.copy, engine, models, slowest, failed, minute)

    async def whole(self) -> list[Snapshot]:
        self.questions += 1
        return [self.snapshot()]

    async def record(self, seconds: float) -> list[bytes]:
        return [await self.recording.record(seconds, lambda: None)]

    def page(self) -> Dashboard:
        return Dashboard(self.name, self.graph, self.whole, self.record)


def op_state(
    name: str,
    *,
    joining: int = 0,
    queued: int = 0,
    running: int = 0,
    wanted: int = 1,
    up: int | None = None,
    busy: int = 0,
    restarts: int = 0,
    stuck: int = 0,
) -> OpState:
    up = wanted if up is None else up
    workers = WorkersState("thread", wanted, up, busy, stuck, restarts)
    return OpState(name, joining, queued, running, workers)


@contextlib.contextmanager
def served(page: Dashboard) -> Iterator[str]:
    """The page on a real port of this machine, as its address."""
    thread = LoopThread()
    door = HttpFrontend(None, "127.0.0.1", 0, 1000, routes=[page])

    async def close() -> None:
        await door.close()
        await door.stop()

    try:
        thread.run(door.start(is_ready=True))
        yield f"http://127.0.0.1:{door.port}/"
    finally:
        thread.run(close())
        thread.close()
