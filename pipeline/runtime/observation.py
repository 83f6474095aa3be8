"""ObservabilityStack: all that looks into one process of a server, as it is configured."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.journal import BY_CALLERS, PIPELINE, Journal, Sink
from pipeline.engine.observers import EngineObservers, packed_request_of
from pipeline.engine.request import RequestState
from pipeline.engine.state import EngineState
from pipeline.errors import InitError, PipelineError
from pipeline.frontends.dashboard.minute import LastMinute
from pipeline.frontends.dashboard.recent import Recording, SlowRequestLog
from pipeline.observe.logs.setup import RequestLog
from pipeline.observe.paddle.profile import profile_text
from pipeline.observe.paddle.profile_writer import ProfileWriter
from pipeline.observe.paddle.tracer import Tracer
from pipeline.observe.paddle.tracer_block import TracedGraph, tracer_files
from pipeline.observe.snapshot import NO_COPY, MinuteSeries, ModelCounters, Snapshot
from pipeline.observe.statistics import Statistics, merge, model_names
from pipeline.tracing.sink import Telemetry, connect_telemetry

_LOGGER = logging.getLogger(__name__)

_FLUSH_S = 1.0  # what happened is told this soon; an idle second costs nothing
SNAPSHOT = "snapshot"
_RECORD = "record "
_ANSWER_S = 1.0  # for a copy of the server to answer; it may be busy, stopped or dying

Ask = Callable[[str, float], Awaitable[list[bytes]]]
"""(question, seconds for the answer) -> what each copy of the server answers."""


class ServerView:
    """The server as a whole, whichever of its copies is asked."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def snapshots(self) -> list[Snapshot]:
        """How each of the copies stands."""
        answers = await self._ask(SNAPSHOT, _ANSWER_S)
        return [msgspec.msgpack.decode(answer, type=Snapshot) for answer in answers]

    async def record(self, seconds: float) -> list[bytes]:
        """Return what happens in each copy in the next `seconds`; see `dashboard.recent`."""
        return await self._ask(f"{_RECORD}{seconds!r}", seconds + _ANSWER_S)


class RetiredCounters:
    """What copies counted that are no more: nobody's counters go back when one of them dies."""

    def __init__(self) -> None:
        self._models: list[ModelCounters] = []

    def add(self, figures: bytes) -> None:
        """Take the last Snapshot of a copy that has ended; b"": it never said one."""
        if figures:
            snapshot = msgspec.msgpack.decode(figures, type=Snapshot)
            for model in snapshot.models:
                model.memory = []
            self._models = merge([self._models, snapshot.models])

    def figures(self) -> list[bytes]:
        """One more Snapshot, if there is anything in it."""
        if not self._models:
            return []
        nothing = EngineState(is_ready=True, inside=0, waiting=0, accepted=0, rejected=0)
        return [msgspec.msgpack.encode(Snapshot(NO_COPY, nothing, self._models))]


class ObservabilityStack:
    """The journal of one process, and its readers.

    Args:
        name: of the service.
        config: which readers there are.
        copy: number of this copy of the server; None: it is the only one.
    """

    def __init__(
        self, name: str | None, graph: Graph, config: ServiceConfig, copy: int | None = None
    ) -> None:
        self._graph = graph
        self._config = config
        self._copy = copy
        self._op_names = [op.name for op in graph.ops]
        self.pipeline_name: str
        self.model_names: list[str]
        self.pipeline_name, self.model_names = model_names(name, self._op_names)
        self._executor: Engine | None = None
        self._closing = contextlib.ExitStack()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.journal: Journal = Journal([])
        self._watchers = EngineObservers(self.journal)
        self._statistics: Statistics | None = None
        self._recent: SlowRequestLog | None = None
        self._recording: Recording | None = None
        self._minute: LastMinute | None = None
        self._telemetry: Telemetry | None = None
        self._on_figures: Callable[[bytes], object] | None = None
        self._told_flushes = 0

    def watchers(self, log: RequestLog) -> EngineObservers:
        """Who is to be told what happens; after `start`."""

        def failed(request: RequestState, error: PipelineError) -> None:
            level = logging.INFO if request.outcome in BY_CALLERS else logging.ERROR
            log.failed(request.data_id, request.log_id, error, level)
            if self._recent is not None:
                self._recent.failed(request.data_id, request.log_id, error)
            if self._telemetry is not None:
                self._telemetry.failed(request.data_id, request.log_id, error)

        def succeeded(request: RequestState) -> None:
            log.succeeded(request.data_id, request.log_id)

        return dataclasses.replace(
            self._watchers,
            journal=self.journal if self.journal.sinks else None,
            on_failure=failed,
            on_success=succeeded if log.wants_successes else None,
            profile=self._profile,
        )

    def _profile(self, request: RequestState) -> str:
        row = packed_request_of(request, PIPELINE)
        return profile_text(row, request.spans or (), self._op_names)

    # Life -------------------------------------------------------------------------------

    def start(self, log_folder: Path) -> None:
        """Make the readers. InitError says what one of them lacks."""
        config = self._config
        if config.statistics:
            self._statistics = Statistics(self.pipeline_name, self.model_names)
            self._recent = SlowRequestLog(self._op_names)
            self._minute = LastMinute()
            self._recording = Recording(self._copy or 0, max(1, config.copies))
            self.journal.sinks += [
                self._statistics,
                self._recent,
                self._recording,
                self._minute,
            ]
        if config.dag.use_profile:
            id_step = 1 if self._copy is None else config.copies
            writer = ProfileWriter(self._op_names, config.dag.profile_per_s, id_step)
            writer.start()
            self._add(writer, writer.close)
        if config.opentelemetry:
            self._start_telemetry()
        if config.dag.tracer.interval_s is not None:
            self._start_tracer(log_folder, config.dag.tracer.interval_s)
        if self.journal.sinks:
            self._every("flush", _FLUSH_S, self._flush)

    def on_figures(self, tell: Callable[[bytes], object]) -> None:
        """Have the Snapshot told whenever something happened."""
        self._on_figures = tell

    def _flush(self) -> None:
        self.journal.flush()
        if self._minute is not None and self._executor is not None:
            self._minute.sample(self._executor.inside + self._executor.waiting)
        if self._on_figures is not None and self._told_flushes != self.journal.flushes:
            self._told_flushes = self.journal.flushes
            self._on_figures(msgspec.msgpack.encode(self.snapshot()))

    def attach(self, executor: Engine) -> None:
        """Look at this engine from now on."""
        self._executor = executor

    def _start_tracer(self, folder: Path, interval_s: float) -> None:
        graph = TracedGraph.of(self._graph, self._config)
        tracer = Tracer(
            graph,
            lambda: self._engine.state(),
            tracer_files(folder, self._config.log, self._copy),
        )
        tracer.start()
        self._add(tracer, tracer.close)

        def tick() -> None:
            self.journal.flush()
            tracer.tick()

        self._every("tracer", interval_s, tick)

    def _start_telemetry(self) -> None:
        telemetry = self._telemetry = connect_telemetry(self.pipeline_name, self._op_names)
        if telemetry is not None:
            self._add(telemetry, telemetry.close)
            self._watchers = dataclasses.replace(self._watchers, begin_trace=telemetry.begin)

    def _add(self, sink: Sink, close: Callable[[], object]) -> None:
        self.journal.sinks.append(sink)
        self._closing.callback(close)

    def _every(self, name: str, interval_s: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self._timers[name] = loop.call_later(interval_s, tick)
            try:
                action()
            except Exception:  # who only looks on must not harm those who work
                _LOGGER.exception("%s failed", name)

        self._timers[name] = loop.call_later(interval_s, tick)

    def end_recordings(self) -> None:
        """The server is about to stop: who records is answered."""
        if self._recording is not None:
            self._recording.end()

    async def close(self) -> None:
        """Tell the last of it. May be called twice, and without `start`."""
        for timer in self._timers.values():
            timer.cancel()
        self.journal.flush()
        await asyncio.to_thread(self._closing.close)  # files, and collectors that may hang

    # Questions --------------------------------------------------------------------------

    async def answer(self, question: str) -> bytes:
        """What this process says to a question of `ServerView`."""
        if question.startswith(_RECORD):
            if self._recording is None:
                raise InitError("statistics: False: there is nothing to record")
            seconds = float(question.removeprefix(_RECORD))
            return await self._recording.record(seconds, self.journal.flush)
        return msgspec.msgpack.encode(self.snapshot())

    def snapshot(self) -> Snapshot:
        """How this process stands now."""
        self.journal.flush()
        models = self._statistics.models if self._statistics is not None else []
        for op, model in zip(self._graph.ops, models[1:], strict=False):
            note = self._engine.note(op)
            model.memory = list(note.memory) if note is not None else []
        return Snapshot(
            copy=self._copy or 0,
            engine=self._engine.state(),
            models=models,
            slowest=self._recent.slowest() if self._recent is not None else [],
            failed=self._recent.failures() if self._recent is not None else [],
            minute=self._minute.series() if self._minute is not None else MinuteSeries(),
        )

    @property
    def _engine(self) -> Engine:
        if self._executor is None:
            raise InitError("the server is not running.")
        return self._executor
