"""The spans that the rows of a recorded request become: itself, its spans at Ops, their stages.

Their ids follow from the request's (`pipeline.tracing.child`): workers send that of `process` to
the servers they call, long before the span is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from pipeline.engine.journal.journal import NO_WORKER, PIPELINE, OpSpan, Outcome, RequestRecord
from pipeline.tracing.context import TraceContext, child_id

_MAX_LINKS = 127  # of one span; collectors drop more than 128
_STAGES = ("queue", "preprocess", "process", "postprocess")

Value = str | int


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One span. Times are ns since the epoch; `error` is "" if it went well.

    `parent` is the span above; `is_entry`: the request's own, whose parent, if any, is the
    caller's. `links` are spans of other traces that had to do with this one.
    """

    name: str
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    is_entry: bool = False
    error: str = ""
    events: Sequence[tuple[str, int]] = ()
    links: Sequence[TraceContext] = ()


class PartTimes(msgspec.Struct, eq=False):
    """Count of the parts of a stream so far, and when the first and the last one went out."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0

    def add(self, end_ns: int) -> None:
        """Count one more."""
        self.first_ns = self.first_ns or end_ns
        self.last_ns, self.count = end_ns, self.count + 1

    def attributes(self) -> dict[str, Value]:
        """Return what a span says of them."""
        attributes: dict[str, Value] = {"pipeline.parts": self.count}
        if self.count > 1:
            gap_ns = (self.last_ns - self.first_ns) // (self.count - 1)
            attributes["pipeline.part_gap_us"] = gap_ns // 1000
        return attributes


class TracedRequest(msgspec.Struct, eq=False):
    """A request that is recorded. `wall_ns`: what makes wall clock of its times.

    `parts` are those of its streams: by the Op that made them, PIPELINE for those of the answer.
    `steps` has, by the Op, the id of the sequence that it was a step of there, and the slot.
    """

    context: TraceContext
    traceparent: str
    parent: TraceContext | None
    wall_ns: int
    error: str = ""
    op_spans: dict[tuple[int, bool], int] = {}
    parts: dict[int, PartTimes] = {}
    steps: dict[int, tuple[int | str, int]] = {}

    def child(self, op: str, stage: str, op_span: int) -> TraceContext:
        """Return the span that `pipeline.tracing.child` names."""
        span_id = int(child_id(self.traceparent, op, stage, op_span), 16)
        return TraceContext(self.context.trace_id, span_id, True)

    def number(self, row: OpSpan) -> int:
        """Count a span at the Op; return how many there were before that ran.

        Because a worker counts only the requests that it runs.
        """
        key = (row.op, row.worker != NO_WORKER)
        number = self.op_spans.get(key, 0)
        self.op_spans[key] = number + 1
        return number


class TracedSpan(NamedTuple):
    """An OpSpan of a recorded request, in the batch number `run`, which had `size` requests.

    `walk` are the indexes of the Ops that its trip passed, this one included.
    """

    traced: TracedRequest
    run: int
    size: int
    row: OpSpan
    walk: Sequence[int] = ()


class RequestSpans:
    """Makes the spans: the requests' own ones are called `pipeline_name`."""

    def __init__(self, pipeline_name: str, names: Sequence[str]) -> None:
        self._pipeline_name = pipeline_name
        self._names = names

    def of_op_spans(self, op_spans: Iterable[TracedSpan]) -> Iterator[SpanRecord]:
        """Yield each span and its stages; those of a batch are neighbours, their `process` linked.

        Each with that of the first, whose `traceparent` a remote server got, and that with all.
        """
        for _, members in groupby(op_spans, key=lambda op_span: op_span.run):
            batch = list(members)
            numbers = [op_span.traced.number(op_span.row) for op_span in batch]
            first, *others = (
                op_span.traced.child(self._names[op_span.row.op], "process", number)
                for op_span, number in zip(batch, numbers, strict=True)
            )
            links = [others[:_MAX_LINKS], *([first] for _ in others)]
            for op_span, number, linked in zip(batch, numbers, links, strict=True):
                yield from self._of_op_span(op_span, number, linked)

    def _of_op_span(
        self, op_span: TracedSpan, number: int, links: list[TraceContext]
    ) -> Iterator[SpanRecord]:
        traced, row = op_span.traced, op_span.row
        op, wall_ns = self._names[row.op], traced.wall_ns
        end_ns = max(row.result_received_ns, row.end_ns)
        whole = traced.child(op, "missed" if row.worker == NO_WORKER else "", number)
        attributes: dict[str, Value] = {"pipeline.op": op, "pipeline.rows": row.rows}
        if row.worker != NO_WORKER:
            attributes["pipeline.worker"] = row.worker
            attributes["pipeline.batch"] = row.batch
            attributes["pipeline.batch_requests"] = op_span.size
            if row.op in traced.steps:
                sequence_id, slot = traced.steps[row.op]
                attributes["pipeline.sequence_id"] = str(sequence_id)  # it may have 64 bits
                attributes["pipeline.sequence_slot"] = slot
            if op_span.walk:
                attributes["pipeline.in_one_go"] = ", ".join(self._names[op] for op in op_span.walk)
        parts = traced.parts.get(row.op) if row.worker != NO_WORKER else None
        is_first = parts is not None and row.start_ns <= parts.first_ns <= end_ns
        yield SpanRecord(
            name=op,
            context=whole,
            parent=traced.context,
            start_ns=min(row.ready_ns or end_ns, end_ns) + wall_ns,
            end_ns=end_ns + wall_ns,
            attributes=_with_error(attributes, row.outcome) | (parts.attributes() if parts else {}),
            error=_text_of(row.outcome),
            events=[("first part", parts.first_ns + wall_ns)] if parts and is_first else (),
        )
        for stage, start_ns, stage_end_ns in _stages(row):
            yield SpanRecord(
                name=f"{op} {stage}",
                context=traced.child(op, stage, number),
                parent=whole,
                start_ns=start_ns + wall_ns,
                end_ns=stage_end_ns + wall_ns,
                attributes={"pipeline.op": op, "pipeline.stage": stage},
                links=links if stage == "process" else (),
            )

    def of_request(self, traced: TracedRequest, row: RequestRecord) -> SpanRecord:
        """Return the request as a whole."""
        attributes: dict[str, Value] = {"pipeline.data_id": row.data_id, "pipeline.rows": row.rows}
        if row.code:
            attributes["pipeline.err_no"] = row.code
        name = self._pipeline_name
        if row.target != PIPELINE:
            name += f" {self._names[row.target]}"
        parts = traced.parts.get(row.target)
        if parts is not None:
            attributes |= parts.attributes()
        moments = (
            ("let into the graph", row.admitted_ns),
            ("unpacked", row.dispatched_ns),
            ("first part", 0 if parts is None else parts.first_ns),
            ("through the graph", row.completed_ns),
        )
        return SpanRecord(
            name=name,
            context=traced.context,
            parent=traced.parent,
            start_ns=row.start_ns + traced.wall_ns,
            end_ns=row.end_ns + traced.wall_ns,
            attributes=_with_error(attributes, row.outcome),
            is_entry=True,
            error=_text_of(row.outcome, traced.error),
            events=[  # it did not reach the times that are 0 or at its end
                (text, time_ns + traced.wall_ns)
                for text, time_ns in moments
                if 0 < time_ns < row.end_ns
            ],
        )


def _stages(row: OpSpan) -> Iterator[tuple[str, int, int]]:
    """Yield (stage, start, end) of the stages that ran; for a lost worker some are unknown."""
    if row.worker == NO_WORKER:
        return
    times = (row.ready_ns, row.start_ns, row.preprocess_end_ns, row.process_end_ns, row.end_ns)
    for stage, start_ns, end_ns in zip(_STAGES, times, times[1:], strict=False):
        if 0 < start_ns <= end_ns:
            yield stage, start_ns, end_ns


def _with_error(attributes: dict[str, Value], outcome: int) -> dict[str, Value]:
    if outcome != Outcome.OK:
        attributes["error.type"] = Outcome(outcome).name
    return attributes


def _text_of(outcome: int, error: str = "") -> str:
    """Return the span's status text; as of HTTP's 4xx it is unset where the caller is to blame."""
    return "" if outcome in (Outcome.OK, Outcome.PRODUCT) else error or Outcome(outcome).name
