"""Traces of requests: which are recorded, and the sink that has spans made of their rows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import numpy as np

from pipeline.engine.journal.journal import (
    PIPELINE,
    Outcome,
    PartKind,
    RequestRecord,
    Rows,
    op_spans,
    part_records,
    request_records,
    wall_offset_ns,
)
from pipeline.errors import one_line
from pipeline.observe.otel import missing
from pipeline.observe.sink import SinkContext
from pipeline.observe.snapshot import Exemplar, Snapshot
from pipeline.observe.tables import Integers, Positions, batches, walks
from pipeline.system.event_loop import DaemonThreads
from pipeline.tracing.context import TraceContext, format_traceparent, parse_traceparent
from pipeline.tracing.spans import PartTimes, RequestSpans, SpanRecord, TracedRequest, TracedSpan

_LOGGER = logging.getLogger(__name__)

_MAX_OPEN = 10_000  # requests that are recorded at a time; they need some 500 bytes each
_MAX_ENDED = 256  # requests that may still have spans to come: those of workers that are stuck
_MAX_PENDING = 16  # that wait for spans to be made of them, before nothing more is recorded


class Recorder(Protocol):
    """Decides which requests are recorded, and takes their spans away."""

    def start(self, parent: TraceContext | None) -> TraceContext | None:
        """Return the span of a request that begins; None: it is not to be recorded.

        Called on the event loop.
        """

    def end(self, span: SpanRecord) -> None:
        """Take a span that is complete. Called on any thread, but on one at a time."""

    def close(self) -> None:
        """Deliver what is left, which may take seconds."""


def open_telemetry(context: SinkContext, options: None) -> Telemetry | None:
    """Open the sink `opentelemetry`: `connect_telemetry`, with its hooks."""
    telemetry = connect_telemetry(context.pipeline_name, context.op_names)
    if telemetry is not None:
        context.on_close(telemetry.close)
        context.on_failure(telemetry.failed)
        context.hooks.begin_trace = telemetry.begin
        context.hooks.on_step = telemetry.step
        context.hooks.trace_of = telemetry.trace_of
        context.on_snapshot(telemetry.fill)
    return telemetry


def connect_telemetry(pipeline_name: str, names: Sequence[str]) -> Telemetry | None:
    """Return a `Telemetry` that exports as the OTEL_* environment says; None: it says nothing.

    It starts a thread. InitError: the extra `otel` is not installed, or the environment names what
    is not there.
    """
    try:
        from pipeline.tracing.recorder import connect
    except ImportError as error:
        raise missing(error) from error
    recorder = connect(pipeline_name)
    return None if recorder is None else Telemetry(pipeline_name, names, recorder)


class Telemetry:
    """The sink that has spans made of the rows of recorded requests.

    All but `close` and `trace_of` is called on the event loop. The spans, 10 us each, are made on a
    thread: one of its own, or `thread`, which `close` shuts down. `wall_ns` returns what is to be
    added to `time.monotonic_ns` for the time since the epoch.
    """

    def __init__(
        self,
        pipeline_name: str,
        names: Sequence[str],
        recorder: Recorder,
        thread: Executor | None = None,
        wall_ns: Callable[[], int] = wall_offset_ns,
    ) -> None:
        self._recorder = recorder
        self._spans = RequestSpans(pipeline_name, names)
        self._thread = thread or DaemonThreads(1, "pipeline-telemetry")
        self._wall_ns = wall_ns
        self._traced: dict[int, TracedRequest] = {}
        self._ended: deque[int] = deque()
        self._exemplars: dict[int, Exemplar] = {}  # by powers of two of 1 us
        self._handed = 0  # flushes; the loop counts these,
        self._made = 0  # and the thread those

    def begin(self, data_id: int, traceparent: str = "") -> str:
        """Decide about a request; return the `traceparent` for its workers, see `SinkHooks`.

        It is that of the request's own span. If it is not recorded: the client's, marked so; "" if
        there was none, or an invalid one.
        """
        parent = parse_traceparent(traceparent) if traceparent else None
        context = self._recorder.start(parent)
        is_behind = self._handed - self._made >= _MAX_PENDING
        if context is None or is_behind or len(self._traced) >= _MAX_OPEN + len(self._ended):
            return format_traceparent(parent._replace(is_sampled=False)) if parent else ""
        text = format_traceparent(context)
        self._traced[data_id] = TracedRequest(context, text, parent, self._wall_ns())
        return text

    def trace_of(self, data_id: int) -> str:
        """Return the `traceparent` of a request that is recorded; "" of others. In any thread."""
        traced = self._traced.get(data_id)
        return "" if traced is None else traced.traceparent

    def step(self, data_id: int, op: int, sequence_id: int | str, slot: int) -> None:
        """Note in which sequence, and slot, a request goes to a worker; see `SinkHooks`."""
        traced = self._traced.get(data_id)
        if traced is not None:
            traced.steps = {**traced.steps, op: (sequence_id, slot)}

    def failed(self, data_id: int, log_id: int, error: object) -> None:
        """Note why a request failed; before its row is flushed."""
        traced = self._traced.get(data_id)
        if traced is not None:
            traced.error = one_line(str(error))

    def notify(self, spans: Rows, requests: Rows) -> None:
        """See `Sink`."""
        if not self._traced:
            return
        traced = np.fromiter(self._traced, np.int64, len(self._traced))
        ours = self._traced_spans(spans, _among(traced, spans))
        ended = [*request_records(requests.take(_among(traced, requests)))]
        if ours or ended:
            pairs = [(self._traced[row.data_id], row) for row in ended]
            self._handed += 1
            self._thread.submit(self._make, ours, pairs)
            for traced_request, row in pairs:
                self._keep(traced_request, row)
        self._ended += [row.data_id for row in ended]
        while len(self._ended) > _MAX_ENDED:
            self._traced.pop(self._ended.popleft(), None)

    def notify_parts(self, parts: Rows) -> None:
        """See `PartSink`. A request's parts come before its row, and before its Op's span."""
        if not self._traced:
            return
        traced = np.fromiter(self._traced, np.int64, len(self._traced))
        for row in part_records(parts.take(_among(traced, parts))):
            if row.kind == PartKind.GIVEN:
                its = self._traced[row.data_id].parts
                its.setdefault(row.target, PartTimes()).add(row.end_ns)

    def fill(self, snapshot: Snapshot) -> None:
        """Give the pipeline its exemplars: per power of two of 1 us the last traced request."""
        if snapshot.models:  # otherwise there are no statistics
            snapshot.models[0].exemplars = list(self._exemplars.values())

    def _keep(self, traced: TracedRequest, row: RequestRecord) -> None:
        if row.outcome == Outcome.OK and row.target == PIPELINE:
            took_ns = row.end_ns - row.start_ns
            ended_ms = (row.end_ns + traced.wall_ns) // 1_000_000
            trace_id = f"{traced.context.trace_id:032x}"
            self._exemplars[(took_ns // 1000).bit_length()] = Exemplar(trace_id, took_ns, ended_ms)

    def close(self) -> None:
        """Deliver what is left; may take seconds, so call it where that does no harm."""
        self._traced.clear()
        self._thread.shutdown()
        self._recorder.close()

    def _traced_spans(self, spans: Rows, which: Positions) -> list[TracedSpan]:
        if not len(which):
            return []
        executed, taken = batches(spans), spans.take(which)
        runs, together = executed.of(which), walks(taken)
        sizes, rows = executed.sizes[runs].tolist(), op_spans(taken)
        return [
            TracedSpan(
                self._traced[row.data_id],
                run,
                size,
                row,
                together.get((row.data_id, row.result_received_ns), ()),
            )
            for run, size, row in zip(runs.tolist(), sizes, rows, strict=True)
        ]

    def _make(
        self, op_spans: list[TracedSpan], requests: list[tuple[TracedRequest, RequestRecord]]
    ) -> None:
        """Make the spans, on the thread."""
        try:
            for span in self._spans.of_op_spans(op_spans):
                self._recorder.end(span)
            for traced, row in requests:
                self._recorder.end(self._spans.of_request(traced, row))
        except Exception:  # the SDK's code; nobody looks at the future
            _LOGGER.exception("spans of a trace could not be recorded")
        finally:
            self._made += 1


def _among(data_ids: Integers, rows: Rows) -> Positions:
    """Return the positions of the rows that are of these requests."""
    ids = rows["data_id"]
    if len(ids):  # most requests ended earlier, and data ids grow
        data_ids = data_ids[(data_ids >= ids.min()) & (data_ids <= ids.max())]
    return np.flatnonzero(np.isin(ids, data_ids))
