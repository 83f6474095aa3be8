"""Service: everything that runs while a server runs, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pipeline.config import registry
from pipeline.config.schema import LogConfig, ServiceConfig, batch_fill_warnings, unknown_ops
from pipeline.engine.engine import Engine
from pipeline.engine.filters import NameCheck, configured
from pipeline.engine.graph import Graph
from pipeline.engine.hooks import doubtful_names
from pipeline.engine.offload import Offload
from pipeline.engine.startup_log import told_if_slow
from pipeline.engine.worker_api import Owner, WorkerContext, WorkerKind, Workers, WorkersFactory
from pipeline.errors import InitError
from pipeline.frontends.base import Frontend, FrontendContext, OpenFrontends
from pipeline.frontends.registry import pipeline_frontends
from pipeline.observe.logs.remote import LogsHome, replay_bytes
from pipeline.observe.logs.setup import RequestLog, log_folder, open_logs
from pipeline.observe.logs.terminal import TOLD
from pipeline.op import Op
from pipeline.runtime.ingress import Ingress, NoIngress
from pipeline.runtime.observation import ObservabilityStack
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.replica_query import Ask, ServerView
from pipeline.system.event_loop import waited
from pipeline.workers.thread import ThreadKind

_LOGGER = logging.getLogger(__name__)

_EDGE_WORKERS = 4  # threads for an overridden unpack or pack method, unless configured
LAST_S = 0.2  # for requests that callers sent before they could know that the doors are closed
_DOOR_GRACE_S = 1.0  # for answers that are on their way out when the doors close


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """What a Service is that shares its ports with others, see `copies`.

    `on_readiness` is told instead of the doors: what they say is up to all copies together.
    `ask` puts a question to all of them. One that `opens_late` opens its doors when it can
    answer: until then the system gives the connections to the others.
    """

    number: int
    on_readiness: Callable[[bool], None]
    ask: Ask
    opens_late: bool = False


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a Service shows of itself: its doors, where its logs go, and what stands before all."""

    doors: OpenFrontends = pipeline_frontends
    logs: Callable[[LogConfig], AbstractContextManager[object]] = open_logs
    front: Ingress = NoIngress()  # noqa: RUF009  # it has no state


class Sidecar(Protocol):
    """What has to run before a server can start, and ends after it."""

    async def start(self) -> None:
        """InitError says why it does not."""

    async def stop(self) -> None:
        """May be called without `start`, and twice."""


class Service:
    """Everything that runs while a server runs, on the event loop that called `start`."""

    def __init__(
        self,
        name: str | None,
        graph: Graph,
        config: ServiceConfig,
        load_predictor: PredictorLoader,
        copy: ReplicaContext | None = None,
        companion: Sidecar | None = None,
        outside: Exposure | None = None,
    ) -> None:
        self._name = name
        self._copy = copy
        self._companion = companion
        self._outside = outside or Exposure()
        self._is_shown_ready = False
        self._was_up = False
        self._graph = graph
        self._config = config
        self._load_predictor = load_predictor
        self._edge_kind: WorkerKind | None = None
        self._worker_kinds: dict[str, WorkerKind] = {}
        self._closing = contextlib.ExitStack()
        self._stopping: asyncio.Task[None] | None = None
        self._grace_s = config.stop_grace_period_s
        self._doors: Mapping[str, Frontend] = {}
        self._takes_more = True
        self._is_leaving = False
        self._hurried = asyncio.Event()
        self._request_log: RequestLog | None = None
        self.observation: ObservabilityStack = ObservabilityStack(
            name, graph, config, copy.number if copy else None
        )
        self._telling: set[asyncio.Future[None]] = set()
        self._executor: Engine | None = None
        self._offload = Offload(config.timeout_s)

    @property
    def executor(self) -> Engine:
        """The engine; made by `start`."""
        if self._executor is None:
            raise InitError("the server is not running.")
        return self._executor

    def describe(self) -> str:
        """One line for whoever started the server."""
        return described(self._name, self._ports())

    @property
    def rpc_port(self) -> int | None:
        return self._ports().get("gRPC")

    @property
    def http_port(self) -> int | None:
        return self._ports().get("HTTP")

    def _ports(self) -> Mapping[str, int]:
        """As callers see them, by the doors' names."""
        ports = {name: door.port for name, door in self._doors.items()}
        front = self._outside.front.port
        return ports if front is None else {**ports, "HTTP": front}

    def fork(self) -> None:
        """Make the kinds of workers that the Ops name, and let each fork what it needs.

        Called before `start`, and before there are threads or gRPC objects: they do not survive
        a fork, and locks that they hold stay locked in the child.
        """
        logs = LogsHome(self._config.log.level)
        context = WorkerContext(self._config, self._load_predictor, logs, replay_bytes)
        ops: dict[str, list[Op]] = {}
        for op in self._graph.ops:
            ops.setdefault(op.pipeline_config.workers or "", []).append(op)
        self._edge_kind = edge_kind = ThreadKind((), context)
        for name, members in ops.items():
            make = registry.find("workers", name)
            kind = edge_kind if make is ThreadKind else make(members, context)
            kind.fork()
            self._worker_kinds[name] = kind

    async def start(self) -> None:
        """Open the doors, initialise the Ops, report ready."""
        config = self._config
        loop = asyncio.get_running_loop()
        if self._copy is None:
            self._closing.enter_context(self._outside.logs(config.log))
            log_warnings(config, self._graph)
        fronted = self._outside.front.start()
        if self._companion is not None:
            await told_if_slow("model services", self._companion.start(), loop)
        self._lower_switch_interval()
        self._offload.start()
        self._request_log = RequestLog(_LOGGER, config.log.request_sample)
        self.observation.start(log_folder())
        ours = [] if self._name is None else [NameCheck(self._name)]
        self._executor = Engine(
            self._graph,
            config,
            functools.partial(self._workers_factory, loop),
            loop,
            observers=self.observation.observers(self._request_log),
            filters=[*ours, *configured(config.filters)],
            on_readiness=self._copy.on_readiness if self._copy else self.show_ready,
            numbering=(self._copy.number, config.copies) if self._copy else (0, 1),
        )
        self.observation.attach(self._executor)
        opens_late = self._copy is not None and self._copy.opens_late
        if not opens_late:
            await self._open_doors()
        await self.executor.start()
        if opens_late:
            await self._open_doors()
        await fronted
        self._was_up = True
        if self._copy is None:
            _LOGGER.info("%s", self.describe())

    async def stop(self) -> None:
        """Stop accepting, drain for the grace period, answer the rest, end all threads."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    def cancel_grace(self) -> None:
        """Cut all that is waited for short: what is left is answered at once."""
        self._grace_s = 0.0
        self._hurried.set()
        self._outside.front.cancel_grace()
        self._answer_all()

    async def drain(self) -> None:
        """Say not ready for good, and send callers away with their answers; go on serving."""
        if not self._is_leaving:
            self._is_leaving = True
            if self._executor is not None:
                self._executor.leave()
            if self._was_up:
                self._outside.front.drain()
            for door in self._doors.values():
                await door.drain()

    async def close_doors(self) -> None:
        """Take no more requests, but those that come through the front."""
        if self._takes_more:
            self._takes_more = False
            for door in self._doors.values():
                await door.close(self._grace_s + _DOOR_GRACE_S)

    def _answer_all(self) -> None:
        if self._executor is not None:
            self._executor.answer_all_closed()

    async def _stop(self) -> None:
        self.observation.stop_soon()
        loop = asyncio.get_running_loop()
        await self.drain()
        if self._copy is None and self._was_up:  # else it is up to all copies together
            await waited(self._hurried, self._config.drain_delay_s)
        ends = loop.time() + self._grace_s
        await self.close_doors()
        if self._copy is None and self._was_up:
            await waited(self._hurried, min(LAST_S, self._config.drain_delay_s))
        late = loop.call_at(ends, self._answer_all)
        if not self._was_up:  # what waits for the Ops waits in vain
            self._outside.front.cancel_grace()
        await self._outside.front.stop(self._grace_s + _DOOR_GRACE_S)
        late.cancel()
        if self._executor is not None:
            left = await self._executor.stop(min(self._grace_s, max(0.0, ends - loop.time())))
            if left:
                _LOGGER.warning("%d workers hang in user code and were left behind", left)
        for kind in self._worker_kinds.values():
            await kind.close()
        for door in self._doors.values():
            await door.stop(_DOOR_GRACE_S)
        await self._offload.stop()
        self._outside.front.close()
        if self._companion is not None:
            await self._companion.stop()
        await self.observation.close()
        if self._request_log is not None:
            self._request_log.flush()
        if self._copy is None and self._was_up:
            _LOGGER.info("pipeline server stopped")
        self._closing.close()

    async def _open_doors(self) -> None:
        whole = ServerView(self._copy.ask if self._copy is not None else self._ask_only_me)
        behind = FrontendContext(
            self._name,
            self._graph,
            self._config,
            self.executor,
            whole.snapshots,
            whole.record,
            self._offload,
            is_shared=self._copy is not None or self._config.reuse_port,
            replica=self._copy.number if self._copy is not None else 0,
        )
        self._doors = self._outside.doors(behind)
        for door in self._doors.values():
            await door.start(self._is_shown_ready)

    async def _ask_only_me(self, question: str, limit_s: float) -> list[bytes]:
        return [await self.observation.answer(question)]

    def show_ready(self, is_ready: bool) -> None:
        """Say at the doors whether the server is ready."""
        if self._is_leaving:
            return
        self._is_shown_ready = is_ready
        for door in self._doors.values():
            telling = asyncio.ensure_future(door.set_ready(is_ready))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def _lower_switch_interval(self) -> None:
        """Beside a busy Python thread the loop waits a whole interval for the GIL."""
        if self._config.switch_interval_s:
            self._closing.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(self._config.switch_interval_s)

    def _workers_factory(
        self, loop: asyncio.AbstractEventLoop, pump: Callable[[], None]
    ) -> WorkersFactory:
        if self._edge_kind is None:
            self.fork()
        edge_kind = self._edge_kind
        assert edge_kind is not None, "fork has made it"
        for kind in {edge_kind, *self._worker_kinds.values()}:
            kind.attach(loop, pump)

        def make(op: Op, owner: Owner) -> Workers:
            config = op.pipeline_config
            if op in (self._graph.request_op, self._graph.response_op):
                return edge_kind.workers(op, max(config.concurrency, _EDGE_WORKERS), owner)
            kind = self._worker_kinds[config.workers or ""]
            return kind.workers(op, config.concurrency, owner)

        return make


@contextlib.contextmanager
def gc_frozen() -> Iterator[None]:
    """Keep modules and models out of the garbage collector's rounds (5 % of an echo's time)."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def described(name: str | None, doors: Mapping[str, int | None]) -> str:
    """One line for whoever started a server."""
    ports = ", ".join(f"{door} on port {port}" for door, port in doors.items() if port)
    return f"pipeline server {name or ''} is ready: {ports}".replace("  ", " ")


def log_warnings(config: ServiceConfig, graph: Graph) -> None:
    """Log what is odd about a configuration, and about the methods of its Ops."""
    for warning in config.warnings:
        _LOGGER.warning("%s", warning, extra=TOLD)  # when it was read
    for warning in _warnings_about(config, graph):
        _LOGGER.warning("%s", warning)


def _warnings_about(config: ServiceConfig, graph: Graph) -> Iterator[str]:
    yield from doubtful_names(graph.all_ops)
    yield from unknown_ops(config, [op.name for op in graph.ops])
    yield from batch_fill_warnings(config, {op.name: op.pipeline_config for op in graph.ops})
