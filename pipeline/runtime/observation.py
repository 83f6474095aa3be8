"""ObservabilityStack: the configured logs, metrics, traces and sinks of one server process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pipeline.config import registry
from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import (
    BY_CALLERS,
    PIPELINE,
    EngineObservers,
    Journal,
    Sink,
    packed_request_of,
)
from pipeline.engine.models import FIRST_VERSION, ModelNames
from pipeline.engine.request import RequestState
from pipeline.errors import ConfigError, InitError, PipelineError, described
from pipeline.metrics import MetricSamples
from pipeline.observe.logs.setup import RequestLog
from pipeline.observe.paddle.profile import profile_text
from pipeline.observe.sink import SinkContext, SinkHooks
from pipeline.observe.snapshot import Snapshot
from pipeline.runtime.replica_query import SNAPSHOT

_LOGGER = logging.getLogger(__name__)

_FLUSH_S = 1.0  # sinks receive events this soon; an idle second costs nothing

_SWITCHES: Mapping[str, Callable[[ServiceConfig], bool]] = {
    "statistics": lambda config: config.statistics,
    "slow_requests": lambda config: config.statistics,
    "recording": lambda config: config.statistics,
    "last_minute": lambda config: config.statistics,
    "profile": lambda config: config.dag.use_profile,
    "opentelemetry": lambda config: config.sends_traces,
    "tracer": lambda config: config.dag.tracer.interval_s is not None,
}
"""Our own sinks, by keys of their own."""

_OF_PIPELINES = {"profile", "tracer"}


def wanted_sinks(config: ServiceConfig, is_pipeline: bool = True) -> dict[str, object]:
    """Return the options of each sink that is to be opened, by its name in the registry.

    Models of a repository have neither those of a user nor `_OF_PIPELINES`.
    """
    ours: dict[str, object] = {
        name: None
        for name, is_wanted in _SWITCHES.items()
        if is_wanted(config) and (is_pipeline or name not in _OF_PIPELINES)
    }
    return {**ours, **config.sinks} if is_pipeline else ours


def _opened(name: str, context: SinkContext, options: object) -> Sink | None:
    open_sink = registry.find("sinks", name)
    try:
        sink: Sink | None = open_sink(context, options)
    except PipelineError:
        raise
    except Exception as error:  # a plug-in's code
        raise InitError(f"sinks.{name}: it cannot be opened: {described(error)}") from error
    if sink is not None and not callable(getattr(sink, "notify", None)):  # a plug-in's
        kind = type(sink).__name__
        raise ConfigError(f"sinks.{name}: expected a Sink, which has notify, found {kind}")
    return sink


class ObservabilityStack:
    """The journal of one process, number `replica` of the server's if there are several.

    `names` are those of the graph and of its Ops as models. `id_step` is that between the numbers
    of its requests, `label` the graph's name in metrics, if there are others.
    """

    def __init__(
        self,
        names: ModelNames,
        graph: Graph,
        config: ServiceConfig,
        replica: int | None = None,
        version: str = FIRST_VERSION,
        id_step: int = 1,
        label: str = "",
    ) -> None:
        self._names = names
        self._id_step = id_step
        self._label = label
        self._version = version
        self._graph = graph
        self._config = config
        self._replica = replica
        self._executor: Engine | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._hooks = SinkHooks()
        self._request_log: RequestLog | None = None
        self._on_snapshot: Callable[[bytes], object] | None = None
        self._reported_flushes = 0
        self._families: Callable[[], list[MetricSamples]] = list
        self.journal: Journal = Journal([])

    def observers(self, log: RequestLog) -> EngineObservers:
        """Return the engine's observers; after `start`."""
        op_names = [op.name for op in self._graph.ops]
        self._request_log = log

        def failed(request: RequestState, error: PipelineError) -> None:
            level = logging.INFO if request.outcome in BY_CALLERS else logging.ERROR
            log.failed(request.data_id, request.log_id, error, level, request.trace)
            for tell in self._hooks.failures:
                tell(request.data_id, request.log_id, error)

        def succeeded(request: RequestState) -> None:
            log.succeeded(request.data_id, request.log_id, request.trace)

        def profile(request: RequestState) -> str:
            row = packed_request_of(request, PIPELINE)
            return profile_text(row, request.spans or (), op_names)

        return EngineObservers(
            journal=self.journal if self.journal.sinks else None,
            on_failure=failed,
            on_success=succeeded if log.wants_successes else None,
            profile=profile,
            begin_trace=self._hooks.begin_trace,
            on_step=self._hooks.on_step,
        )

    # Life -------------------------------------------------------------------------------

    def start(self, log_folder: Path, further: str = "", is_pipeline: bool = True) -> None:
        """Open the sinks, see `wanted_sinks`. InitError says what one of them lacks.

        `further` is the name of a pipeline that is not the first of its server.
        """
        op_names = [op.name for op in self._graph.ops]
        graph, ops = self._names
        pipeline_name, names = graph or "", [name or "" for name in ops]
        context = SinkContext(
            pipeline_name,
            op_names,
            names,
            self._replica,
            log_folder,
            self._graph,
            self._config,
            state=lambda: self._engine.state(),
            flush=self.journal.flush,
            hooks=self._hooks,
            id_step=self._id_step,
            further=further,
        )
        for name, options in wanted_sinks(self._config, is_pipeline).items():
            sink = _opened(name, context, options)
            if sink is not None:
                self.journal.sinks.append(sink)
        if self.journal.sinks:
            self._every("fold", _FLUSH_S, self._tell_snapshot)
        for timer in self._hooks.timers:
            self._every(*timer)

    def attach(self, executor: Engine) -> None:
        """Look at this engine from now on."""
        self._executor = executor

    def trace_of(self, data_id: int) -> str:
        """Return the `traceparent` of a request that is recorded; "" of others. In any thread."""
        find = self._hooks.trace_of
        return "" if find is None else find(data_id)

    def on_snapshot(self, tell: Callable[[bytes], object]) -> None:
        """Have the Snapshot told now, and whenever something happened."""
        self._on_snapshot, self._reported_flushes = tell, -1
        self._tell_snapshot()

    def add_families(self, families: Callable[[], list[MetricSamples]]) -> None:
        """Also have the Snapshot include these families of the process."""
        self._families = families

    def _tell_snapshot(self) -> None:
        if self._on_snapshot is not None and self._reported_flushes != self.journal.flushes:
            self._reported_flushes = self.journal.flushes
            self._on_snapshot(msgspec.msgpack.encode(self.snapshot()))

    def _every(self, name: str, interval_s: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self._timers[name] = loop.call_later(interval_s, tick)
            try:
                self.journal.flush()
                action()
            except Exception:  # a sink's code: it must not harm the requests
                _LOGGER.exception("%s failed", name)

        self._timers[name] = loop.call_later(interval_s, tick)

    def stop_soon(self) -> None:
        """Notify the sinks that the server is about to stop: they answer clients that record."""
        for stop in self._hooks.stops:
            stop()

    async def close(self) -> None:
        """Bring the sinks up to the end, and close them. May be called twice, without `start`."""
        for timer in self._timers.values():
            timer.cancel()
        self.journal.flush()
        if self._request_log is not None:
            self._request_log.flush()
        await asyncio.to_thread(self._hooks.closing.close)  # files, and collectors that may hang

    # Questions --------------------------------------------------------------------------

    async def answer(self, question: str) -> bytes:
        """Return what this process says to a question of `ServerView`."""
        word, _, rest = question.partition(" ")
        if word == SNAPSHOT:
            return msgspec.msgpack.encode(self.snapshot())
        if word not in self._hooks.answers:
            raise InitError(f"statistics: False: there is nothing to {word}")
        return await self._hooks.answers[word](rest)

    def snapshot(self) -> Snapshot:
        """Return the state and the numbers of this process now."""
        self.journal.flush()
        replica, state = self._replica or 0, self._engine.state()
        snapshot = Snapshot(replica, state, [], pipeline=self._label)
        for fill in self._hooks.snapshots:
            fill(snapshot)
        graph, ops = self._names
        for name, model in zip((graph, *ops), snapshot.models, strict=False):
            model.version = "" if name is None else self._version
        for op, model in zip(self._graph.ops, snapshot.models[1:], strict=False):
            note = self._engine.note(op)
            model.memory = list(note.memory) if note is not None else []
        snapshot.families = self._families()
        return snapshot

    @property
    def _engine(self) -> Engine:
        if self._executor is None:
            raise InitError("the server is not running.")
        return self._executor
