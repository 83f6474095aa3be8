"""Service: everything that runs while a server runs, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.models import ModelRegistry, key_of_model
from pipeline.engine.offload import Offload
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import InitError
from pipeline.frontends.base import Frontend, FrontendContext
from pipeline.frontends.v2.control import RepositoryControl
from pipeline.observe import otel
from pipeline.observe.metrics import ProcessMetrics, render
from pipeline.observe.snapshot import Snapshot, of_no_replica
from pipeline.observe.traces.traces import traces_of
from pipeline.runtime.base import (
    STRAGGLERS_S,
    Exposure,
    Pipelines,
    Runtime,
    reach_of,
    ready_line,
)
from pipeline.runtime.loaded_graph import GraphPlace, LoadedGraph
from pipeline.runtime.model_services import ModelServices
from pipeline.runtime.replica_query import SNAPSHOT, Ask
from pipeline.runtime.share import Share, share_of
from pipeline.system.event_loop import or_stopped, waited
from pipeline.system.resources import raise_file_limit
from pipeline.workers.process.shared import SharedProcesses

if TYPE_CHECKING:
    from pipeline.observe.otel.metrics import OtelMetrics

_LOGGER = logging.getLogger(__name__)

_FRONTEND_GRACE_S = 1.0  # for answers that are on their way out when the frontends close


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """The place of a Service among the replicas of a server, which share its ports.

    `on_readiness` gets the notice instead of the frontends: their readiness depends on all replicas
    together. `ask` puts a question to all of them; each answers a question that begins with a word
    of `answers`, by the rest of its text and its number: all replicas get them in this order. One
    that `opens_late` opens its frontends when it can answer: until then the system gives the
    connections to the others. `leave` has this one stopped, and replaced.
    """

    number: int
    count: int
    on_readiness: Callable[[bool], None]
    ask: Ask
    opens_late: bool = False
    leave: Callable[[], None] = lambda: None
    answers: dict[str, Callable[[str, int], Awaitable[bytes]]] = field(default_factory=dict)

    def asking(self, word: str) -> Ask:
        """Return what asks all of them questions that begin with a word of `answers`."""
        return lambda text, limit_s: self.ask(f"{word} {text}", limit_s)


class ServiceControl(RepositoryControl, Protocol):
    """The life of the models of a server that has no graph of its own."""

    async def start(self) -> None:
        """Load what is to be there at the start. Raises PipelineError: the server shall end."""

    async def catch_up(self) -> None:
        """Have what other replicas of the server have."""

    async def stop(self) -> None:
        """End all models, each when it has answered what it has, or its time is over."""


MakeControl = Callable[[ModelRegistry, Callable[[bool], None], Share], ServiceControl]
"""Makes a control of models from the registry, the readiness callback and shared services."""


class Service(Runtime):
    """A Runtime of one process: all of it runs on the event loop that called `start`.

    Without `pipelines` its models are the models that `control` loads; their workers may come
    from `processes`.
    """

    def __init__(
        self,
        pipelines: Pipelines,
        config: ServiceConfig,
        replica: ReplicaContext | None = None,
        sidecar: ModelServices | None = None,
        exposure: Exposure | None = None,
        control: MakeControl | None = None,
        processes: SharedProcesses | None = None,
    ) -> None:
        super().__init__(pipelines, config, sidecar, exposure)
        self._replica = replica
        self._was_up = False
        self._share = share_of(config, len(pipelines))
        self.models: ModelRegistry = ModelRegistry(is_repository=not pipelines)
        self._graphs = [self._loaded(number) for number in range(len(pipelines))]
        for graph in self._graphs:
            self.models.add(graph)
        self._control = control and control(self.models, self._readiness_changed, self._share)
        self._processes = processes
        self._frontends = _Frontends()
        self._offload = Offload(config.timeout_s)
        self._process: ProcessMetrics | None = None
        self._sent: OtelMetrics | None = None
        self._traces = traces_of(config, None if replica is None else replica.number)

    def _loaded(self, number: int) -> LoadedGraph:
        """Return what serves the pipeline of this number."""
        (name, graph, load, dag), count = self._pipelines[number], len(self._pipelines)
        config = self._config if dag is None else replace(self._config, dag=dag)
        replica, word = self._replica, f"pipeline/{number}"
        label, further = str(name) if count > 1 else "", str(name) if number else ""
        place = GraphPlace(number, count, label=label, further=further)
        if replica is not None:
            first, step = replica.number + number * replica.count, replica.count * count
            place = GraphPlace(first, step, replica.number, replica.asking(word), label, further)
        loaded = LoadedGraph(name, graph, config, load, place, share=self._share)
        if replica is not None:
            replica.answers[word] = lambda text, number: loaded.observation.answer(text)
        return loaded

    def on_snapshot(self, tell: Callable[[str, bytes], object]) -> None:
        """Have the Snapshots of all pipelines told, each with the question that asks for it."""
        for number, graph in enumerate(self._graphs):
            graph.observation.on_snapshot(partial(tell, f"pipeline/{number} {SNAPSHOT}"))

    @property
    def engine(self) -> Engine:
        """The engine of the first pipeline; made by `start`."""
        return self._first.engine

    @property
    def _first(self) -> LoadedGraph:
        if not self._graphs:
            raise InitError("this server has models, and no graph of its own.")
        return self._graphs[0]

    def describe(self) -> str:
        return ready_line(self._pipelines, self._ports(), reach_of(self._config))

    @property
    def rpc_port(self) -> int | None:
        return self._ports().get("gRPC")

    @property
    def http_port(self) -> int | None:
        return self._ports().get("HTTP")

    def _ports(self) -> Mapping[str, int]:
        """Return the ports as callers see them, by the frontends' names."""
        return {**self._frontends.ports, **self._exposure.ingress.ports}

    def fork(self) -> None:
        """Let each kind of workers fork what it needs, see `Runtime`."""
        for graph in self._graphs:
            graph.fork()
        if self._processes is not None:
            self._processes.fork()

    async def start(self) -> None:
        """Open the frontends, initialise the Ops, report ready."""
        if self._replica is None:
            self._open_logs()
        raise_file_limit()
        ingress_ready = await self._start_beside()
        if (
            self._config.switch_interval_s
        ):  # the loop must not wait for the GIL beside a busy thread
            self._closing.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(self._config.switch_interval_s)
        self._offload.start()
        if self._processes is not None:
            self._processes.attach(asyncio.get_running_loop())
        await self._share.open()
        self._watch_process()
        for graph in self._graphs:
            graph.open(self._readiness_changed)
        self._send_metrics()
        opens_late = self._replica is not None and self._replica.opens_late
        if not opens_late:
            await self._open_frontends()
        for graph in self._graphs:
            name = str(graph.names[0])
            try:
                await self.models.load(name)
            except InitError as error:
                if len(self._graphs) == 1:
                    raise
                raise InitError(f"pipeline {name!r}: {error}") from error
        if self._control is not None:
            await self._control.start()
            self._readiness_changed(True)
        if opens_late:
            await self._open_frontends()
        await ingress_ready
        self._was_up = True
        if self._replica is None:
            _LOGGER.info("%s", self.describe())

    def _watch_process(self) -> None:
        """Have /metrics say how the process is doing, if it is to say anything."""
        if not self._config.statistics:
            return
        self._process = process = ProcessMetrics(asyncio.get_running_loop())
        process.start()
        self._closing.callback(process.close)
        if self._graphs:
            self._first.observation.add_families(process.families)

    def _send_metrics(self) -> None:
        """Send /metrics to OpenTelemetry's collectors, if that is wanted."""
        if "metrics" in self._config.signals:
            self._sent = otel.open_metrics(self._name or "", self._metrics_text)
            if self._sent is not None:
                self._sent.start()

    async def _metrics_text(self) -> bytes:
        """Return what /metrics says of this process."""
        alone: Sequence[Snapshot] = [graph.observation.snapshot() for graph in self._graphs]
        alone = alone or await self._all_snapshots()
        by_replica = self._replica is not None
        text = await asyncio.to_thread(render, alone, by_replica, self._config.metrics)
        return text + self._share.metrics.text()

    @property
    def _grace_s(self) -> float:
        return 0.0 if self._grace_cancelled.is_set() else self._config.stop_grace_period_s

    async def drain(self) -> None:
        """Report not ready permanently, close connections with their answers; continue to serve."""
        if not self._frontends.is_draining:
            self._frontends.is_draining = True
            for graph in self._graphs:
                graph.leave()
            if self._was_up:
                self._exposure.ingress.drain()
            await self._frontends.drain()

    async def close_frontends(self) -> None:
        """Take no more requests except through the ingress."""
        await self._frontends.close(self._grace_s + _FRONTEND_GRACE_S)

    async def catch_up(self) -> None:
        """Have the models that other replicas have: some may have come while this one started."""
        if self._control is not None:
            await self._control.catch_up()

    def show_ready(self, is_ready: bool) -> None:
        """Say at the frontends whether the server is ready."""
        self._frontends.show_ready(is_ready)

    def _answer_all(self) -> None:
        for graph in self._graphs:
            graph.answer_all_closed()

    async def _stop(self) -> None:
        for graph in self._graphs:
            graph.observation.stop_soon()
        loop = asyncio.get_running_loop()
        is_alone = self._replica is None and self._was_up  # else it is up to all replicas together
        await self.drain()
        if is_alone:
            await waited(self._grace_cancelled, self._config.drain_delay_s)
        ends = loop.time() + self._grace_s
        left = (graph.finish_sequences(ends, self._grace_cancelled) for graph in self._graphs)
        await asyncio.gather(*left)
        await self.close_frontends()
        if is_alone:
            await waited(self._grace_cancelled, min(STRAGGLERS_S, self._config.drain_delay_s))
        late = loop.call_at(ends, self._answer_all)
        if not self._was_up:  # the Ops will never answer the waiting requests
            self._exposure.ingress.cancel_grace()
        await self._exposure.ingress.stop(self._grace_s + _FRONTEND_GRACE_S)
        late.cancel()
        if self._sent is not None:
            await self._sent.close()
        if self._control is not None:
            await self._control.stop()
        await self.models.close(min(self._grace_s, max(0.0, ends - loop.time())))
        if self._processes is not None:
            await self._processes.close()
        await self._frontends.stop(ends, self._grace_cancelled)
        await self._offload.stop()
        await asyncio.to_thread(self._traces.close)
        await self._share.close()
        self._exposure.ingress.close()
        if self._sidecar is not None:
            await self._sidecar.stop()
        for graph in self._graphs:
            await graph.observation.close()
        if is_alone:
            _LOGGER.info("pipeline server stopped")
        self._closing.close()

    async def _open_frontends(self) -> None:
        replica = self._replica
        context = FrontendContext(
            self._name,
            self._config,
            self._graphs[0].engine if self._graphs else None,
            self.models,
            self._all_snapshots,
            self._offload,
            is_shared=replica is not None or self._config.reuse_port,
            replica=replica.number if replica is not None else 0,
            control=self._control,
            traces=self._traces,
            metrics=self._share.metrics,
            memory=self._memory,
        )
        await self._frontends.open(self._exposure.frontends(context))

    @property
    def _memory(self) -> MemoryDomain:
        """Return the memory that worker processes of this server read, if it has some."""
        if self._processes is not None:
            return self._processes.processes.memory
        graphs = (graph.engine.executor.nodes.values() for graph in self._graphs)
        domains = (node.workers.memory_domain for nodes in graphs for node in nodes)
        return next((domain for domain in domains if domain.is_mapped), LOCAL)

    async def _all_snapshots(self) -> list[Snapshot]:
        """Return the Snapshots of all pipelines, or of all models of a repository.

        Those say whose they are, and have the process's beside them.
        """
        graphs = self.models.graphs()
        of_each = await asyncio.gather(*(served.snapshots() for served in graphs))
        merged = [snapshot for snapshots in of_each for snapshot in snapshots]
        if self._graphs:
            return merged
        for served, snapshots in zip(graphs, of_each, strict=True):
            for snapshot in snapshots:
                snapshot.model = key_of_model(served.names)
                snapshot.version = served.version
                if self._replica is None or snapshot.replica == self._replica.number:
                    self._share.earlier.add_to(snapshot)
        if self._process is not None:
            merged.append(of_no_replica([], self._process.families()))
        return merged

    def _readiness_changed(self, _: bool) -> None:
        tell = self.show_ready if self._replica is None else self._replica.on_readiness
        tell(self.models.is_ready if self._control is None else self._control.is_ready)


class _Frontends:
    """The frontends of a process: they open, say whether it is ready, and close together."""

    def __init__(self) -> None:
        self._opened: Mapping[str, Frontend] = {}
        self._is_ready = False
        self.is_draining = False
        self._is_closed = False
        self._tasks: set[asyncio.Future[None]] = set()

    @property
    def ports(self) -> Mapping[str, int]:
        return {name: frontend.port for name, frontend in self._opened.items()}

    async def open(self, frontends: Mapping[str, Frontend]) -> None:
        self._opened = frontends
        for frontend in frontends.values():
            await frontend.start(self._is_ready)

    def show_ready(self, is_ready: bool) -> None:
        """Say whether the server is ready; once they drain it is not."""
        if self.is_draining:
            return
        self._is_ready = is_ready
        for frontend in self._opened.values():
            task = asyncio.ensure_future(frontend.set_ready(is_ready))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Say not ready, and send callers away with their answers."""
        for frontend in self._opened.values():
            await frontend.drain()

    async def close(self, grace_s: float) -> None:
        """Take no more requests."""
        if not self._is_closed:
            self._is_closed = True
            for frontend in self._opened.values():
                await frontend.close(grace_s)

    async def stop(self, ends: float, cancelled: asyncio.Event) -> None:
        """End them when their callers have read the answers; at `ends`, or soon if `cancelled`."""
        loop = asyncio.get_running_loop()
        for frontend in self._opened.values():
            left_s = ends - loop.time()
            if left_s > _FRONTEND_GRACE_S and await or_stopped(cancelled, frontend.stop(left_s)):
                continue
            await frontend.stop(_FRONTEND_GRACE_S)


@contextlib.contextmanager
def gc_frozen() -> Iterator[None]:
    """Keep modules and models out of the garbage collector's rounds (5 % of an echo's time)."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
