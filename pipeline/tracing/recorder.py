"""Spans by OpenTelemetry's SDK: sampling, resource and exporters as the OTEL_* environment says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from pipeline.observe.otel.environment import (
    CLOSE_S,
    exporters_of,
    impatience,
    resource_of,
    setting,
)
from pipeline.tracing.context import TRACES_A_SECOND, TraceContext
from pipeline.tracing.spans import SpanRecord

_UNSET = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope("pipeline")

Choose = Callable[[TraceContext | None], int]
"""(the caller's span) -> the id of the trace that the request is recorded in; 0: it is not."""

_IDS = RandomIdGenerator()


class RateLimit:
    """Records what the caller records, and of what comes without a trace so many a second.

    So the first request that somebody tries is seen, and a busy server is not slowed down.
    """

    def __init__(self, a_second: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._most = float(a_second)
        self._left = float(a_second)
        self._clock_s = clock_s
        self._last_s = clock_s()
        self._closed_until_s = self._last_s

    def __call__(self, parent: TraceContext | None) -> int:
        """See `Choose`. It is asked for every request: mostly, a glance at the clock is enough."""
        if parent is not None:
            return parent.trace_id if parent.is_sampled else 0
        now_s = self._clock_s()
        if now_s < self._closed_until_s:
            return 0
        left = min(self._most, self._left + (now_s - self._last_s) * self._most) - 1
        self._left, self._last_s = left, now_s
        if left < 1:
            self._closed_until_s = now_s + (1 - left) / self._most
        return _IDS.generate_trace_id()


class SamplerDecision:
    """The answer of a sampler of the SDK, such as that of OTEL_TRACES_SAMPLER."""

    def __init__(
        self, sampler: Sampler, name: str, new_id: Callable[[], int] = _IDS.generate_trace_id
    ) -> None:
        self._sampler = sampler
        self._name = name
        self._new_id = new_id

    def __call__(self, parent: TraceContext | None) -> int:
        """See `Choose`."""
        trace_id = self._new_id() if parent is None else parent.trace_id
        context = None
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(_span_context(parent, is_remote=True)))
        result = self._sampler.should_sample(context, trace_id, self._name, SpanKind.SERVER)
        return trace_id if result.decision is Decision.RECORD_AND_SAMPLE else 0


class OtelRecorder:
    """A `Recorder` that hands spans to exporters, in batches, from a thread of the SDK's.

    `close_s` is what a collector that does not answer gets when the server stops.
    """

    def __init__(
        self,
        exporters: Sequence[SpanExporter],
        resource: Resource,
        choose: Choose,
        close_s: float = CLOSE_S,
    ) -> None:
        self._exporters = exporters
        self._processors = [BatchSpanProcessor(exporter) for exporter in exporters]
        self._resource = resource
        self._choose = choose
        self._close_s = close_s

    def start(self, parent: TraceContext | None) -> TraceContext | None:
        trace_id = self._choose(parent)
        return TraceContext(trace_id, _IDS.generate_span_id(), True) if trace_id else None

    def end(self, span: SpanRecord) -> None:
        """See `Recorder`. The SDK drops the oldest spans that wait when there are too many."""
        # Not by a Tracer: that one chooses the ids itself, after the workers have sent theirs.
        done = ReadableSpan(
            name=span.name,
            context=_span_context(span.context),
            parent=_span_context(span.parent, span.is_entry) if span.parent else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, timestamp=time_ns) for name, time_ns in span.events],
            links=[Link(_span_context(link)) for link in span.links],
            kind=SpanKind.SERVER if span.is_entry else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else _UNSET,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )
        for processor in self._processors:
            processor.on_end(done)

    def close(self) -> None:
        """Export what waits; what a collector does not take in time is lost."""
        with impatience(self._exporters, self._close_s):
            for processor in self._processors:
                processor.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK


def connect(pipeline_name: str) -> OtelRecorder | None:
    """Return a recorder as the environment says; None if it says that nothing is exported.

    InitError: an exporter or protocol that is not there, or that cannot be made.
    """
    exporters = exporters_of("traces")
    if not exporters:
        return None
    resource = resource_of(pipeline_name)
    choose: Choose = RateLimit(TRACES_A_SECOND)
    if setting(OTEL_TRACES_SAMPLER):
        # The SDK reads this variable, and the argument's, where it makes a provider.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        choose = SamplerDecision(provider.sampler, pipeline_name)
    return OtelRecorder(exporters, resource, choose)


def _span_context(context: TraceContext, is_remote: bool = False) -> SpanContext:
    flags = TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT
    return SpanContext(context.trace_id, context.span_id, is_remote, TraceFlags(flags))
