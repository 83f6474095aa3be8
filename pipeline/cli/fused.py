"""Fused: the Ops of a graph that may run in one go, as it is configured; no worker is started."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from pipeline.config.schema import DagConfig
from pipeline.engine.executor import DispatchCycle, Executor
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import EngineObservers
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.streams.plan import plan_streams
from pipeline.engine.trips.groups import obstacle, waits_for_nobody
from pipeline.engine.worker_api import WorkersBase
from pipeline.op import Op


class Fused(Struct, frozen=True):
    """Names of Ops: `groups` run in one go while all in them are quick; `apart`: why others never.

    Which Ops are quick is seen at work; what `init_op` sets, and what plug-ins' workers can, is not
    known before.
    """

    groups: Sequence[tuple[str, ...]]
    apart: Mapping[str, str]


def fused(graph: Graph, config: DagConfig) -> Fused:
    """Return what becomes of a graph whose Ops are configured, if all of them are quick."""
    executor = Executor(
        graph,
        lambda op, owner: cast(Any, _workers_of(op)),
        cast(Any, _Loop),
        DispatchCycle(cast(Any, _Loop), cast(Any, None)),
        cast(Any, None),
        cast(Any, None),
        EngineObservers(),
        config,
        plan_streams(graph),
    )
    nodes = list(executor.nodes.values())
    for node in nodes:
        node.pace.is_quick = True
    executor.trips.changed()
    groups = _groups(executor, nodes)
    together = {name for group in groups for name in group}
    return Fused(
        groups,
        {node.name: _why(node, nodes, config) for node in nodes if node.name not in together},
    )


def _groups(executor: Executor, nodes: Iterable[OpDispatcher]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for node in nodes:
        is_new = not any(node.name in group for group in found)
        plan = executor.trips.groups.planned(node) if is_new else None
        if plan is not None:
            found.append(tuple(step.name for step in plan.steps))
    return found


def _why(node: OpDispatcher, nodes: Sequence[OpDispatcher], config: DagConfig) -> str:
    """Return why an Op runs by itself."""
    reason = obstacle(node, nodes)
    if reason is not None:
        return reason
    if config.fuse != "auto":
        return "dag.fuse is off"
    if not node.pace.is_fusable:
        return "it holds what only the thread may use that made it"
    producers = [other for other in nodes if other.name in node.channel.producers]
    free = [other for other in producers if other.pace.is_fusable]
    if not free:
        return "nothing next to it goes along with it"
    if node.channel.is_join:
        return "it waits for Ops that do not go together"
    (other,) = free
    if waits_for_nobody(node):
        return f"{other.name} goes along with others"
    return "its requests wait for others to make a batch with"


# What an Executor asks for ------------------------------------------------------------------


class _Loop:
    """An event loop on which nothing happens later."""

    @staticmethod
    def call_soon(callback: Callable[[], None]) -> None:
        callback()

    @staticmethod
    def call_at(when: float, callback: Callable[..., None], *args: object) -> None:
        """Never call it."""

    @staticmethod
    def time() -> float:
        return 0.0


def _never(self: object, *given: object) -> None:
    """Be there: it is for Ops that are at work."""


class _Workers(WorkersBase):
    """The workers of an Op that does not start; `note`: of its model, if it has one."""

    runs_slices = True  # as our own do

    def __init__(self, op: Op) -> None:
        self.note: Any = op.pipeline_config.local_service_conf.model_config


class _Lending(_Workers):
    """Threads; see `Lender`."""

    part = employ = _never

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.idle: list[Any] = []
        self.backlog: deque[Any] = deque()
        self.lender: Any = self

    def states(self) -> Iterable[dict[str, Any]]:
        return ()


_KINDS: Mapping[str | None, type[_Workers]] = {"thread": _Lending}


def _workers_of(op: Op) -> _Workers:
    return _KINDS.get(op.pipeline_config.workers, _Workers)(op)
