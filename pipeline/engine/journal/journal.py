"""Journal: rows of integers for all that happens, which all who look into a server read.

A span is one request's pass through one Op. The hot path appends numbers to a `Journal` (0.3 us);
statistics, tracer, profiles, metrics and traces take in its rows later, many at a time, in numpy.
"""

from __future__ import annotations

import enum
import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pipeline.errors import ErrorCode, PipelineError, QueueLimitError, TooLateError

if TYPE_CHECKING:
    from pipeline.engine.request import RequestState

_LOGGER = logging.getLogger(__name__)

MAX_ROWS = 2048
"""Rows before they are flushed, which takes some 0.5 us each."""


class Outcome(enum.IntEnum):
    """Ending of a span or of a request. The failures are Triton's reasons for one, and PRODUCT."""

    OK = 0
    REJECTED = 1  # its time was over before it ran
    CANCELED = 2  # the caller went away
    BACKEND = 3  # user code or a model failed, or took too long
    OTHER = 4  # a worker was lost, the server stops, the request failed elsewhere
    PRODUCT = 5  # it could not be served as it was: a product error, or no valid request


_OK = int(Outcome.OK)

BY_CALLERS = (Outcome.CANCELED, Outcome.PRODUCT)
"""Failures that say nothing about the health of the service."""


def outcome_of(error: PipelineError) -> Outcome:
    """Return the ending of a span or a request that failed with `error` while worked on."""
    if isinstance(error, QueueLimitError):  # it came to no worker
        return Outcome.REJECTED if isinstance(error, TooLateError) else Outcome.OTHER
    return Outcome.PRODUCT if error.is_callers else Outcome.BACKEND


FROM_OUTSIDE = (Outcome.REJECTED, Outcome.CANCELED)
"""No Op is the reason for these."""

PIPELINE = -1
"""`target` of a request that is for the whole graph."""

NO_WORKER = -1
"""`worker` of a span that never ran; its `batch` is -1, its times are those of its end."""


class OpSpan(NamedTuple):
    """One request's pass through one Op: a row of SPAN, as `op_spans` yields it.

    All are integers. Times are ns of `time.monotonic_ns`, those of the whole batch but `ready_ns`;
    `wall_offset_ns` makes wall clock of them.
    """

    op: int  # index in Graph.ops
    worker: int
    batch: int  # running number of the Op's batches; rows of a batch are neighbours
    data_id: int
    rows: int  # samples that the request brought: its batch size, >= 1
    outcome: int  # an Outcome
    ready_ns: int  # could have started
    start_ns: int  # preprocess of the batch begins
    preprocess_end_ns: int  # process begins
    process_end_ns: int  # postprocess begins
    end_ns: int
    result_received_ns: int  # the event loop had the result: of all Ops of a trip at once


class RequestRecord(NamedTuple):
    """One request from its arrival to its answer: a row of REQUEST, as `request_records` yields it.

    All are integers. Times are ns of `time.monotonic_ns`.
    """

    data_id: int
    target: int  # PIPELINE, or the index of the only Op that it is for
    rows: int
    outcome: int  # an Outcome
    code: int  # err_no; 0 is none
    start_ns: int  # arrived
    admitted_ns: int  # let into the graph; unpack begins
    dispatched_ns: int  # at the first Ops; 0: never got there
    completed_ns: int  # through the graph; pack begins
    end_ns: int  # answered
    input_ns: int  # sums over its spans that ended well: preprocess,
    infer_ns: int  # process,
    output_ns: int  # postprocess


class PartKind(enum.IntEnum):
    """Kind of a row of PART: those of responses in Triton."""

    GIVEN = 0
    EMPTY = 1  # the end of a stream that ended well
    FAILED = 2
    CANCELED = 3


class PartRecord(NamedTuple):
    """One part of a stream, or its end: a row of PART, as integers and ns of REQUEST's are."""

    data_id: int
    target: int  # PIPELINE: a part of the answer; else the index of the Op that made it
    number: int  # of the part, from 0
    kind: int  # a PartKind
    start_ns: int  # the part before it; of the first one, when its request or batch began
    made_ns: int  # it was there: pack begins
    end_ns: int  # on its way


SPAN = np.dtype([(name, np.int64) for name in OpSpan._fields])
"""The array form of OpSpan."""

REQUEST = np.dtype([(name, np.int64) for name in RequestRecord._fields])
"""The array form of RequestRecord."""

PART = np.dtype([(name, np.int64) for name in PartRecord._fields])
"""The array form of PartRecord."""

Rows = npt.NDArray[Any]
"""A one-dimensional structured array of SPAN, REQUEST or PART."""


def op_spans(spans: Rows) -> Iterator[OpSpan]:
    """Yield the rows of an array of SPAN as named integers; some 1 us each."""
    return map(OpSpan._make, spans.tolist())


def request_records(requests: Rows) -> Iterator[RequestRecord]:
    """Yield the rows of an array of REQUEST as named integers; some 1 us each."""
    return map(RequestRecord._make, requests.tolist())


def part_records(parts: Rows) -> Iterator[PartRecord]:
    """Yield the rows of an array of PART as named integers; some 1 us each."""
    return map(PartRecord._make, parts.tolist())


def wall_offset_ns() -> int:
    """Return what to add to the times of rows, `time.monotonic_ns`, for time since the epoch."""
    return time.time_ns() - time.monotonic_ns()


class Sink(Protocol):
    """A reader of what happened, called on the event loop: it must not block.

    It may keep the arrays, which are its own to read and nobody's to write. Spans come before the
    end of their request, in the same call or an earlier one; but for those that outlive it.
    `op_spans` and `request_records` read the rows by name. What it raises is logged, no more.
    """

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Take in what happened since the last call, which is about a second ago or less.

        Args:
            spans: a row of SPAN, see `OpSpan`, for each request's pass through an Op that ended.
            requests: a row of REQUEST, see `RequestRecord`, for each that was answered.
                At least one of both is not empty.
        """


@runtime_checkable
class PartSink(Sink, Protocol):
    """A sink that reads parts of streams, too; `notify` may come before or after it."""

    def notify_parts(self, parts: Rows) -> None:
        """Take in the parts since the last call: a row of PART for each; at least one."""


@runtime_checkable
class FillerSink(Sink, Protocol):
    """A sink that counts what fills the places of batches that no request has, too."""

    def notify_fillers(self, op: int, batch: int, rows: int) -> None:
        """Take note of how many rows of a batch nobody has sent."""


class TripRowForm(Protocol):
    """Rows of requests that went through the same Ops in one go; see `spans.TripRows`."""

    def add(self, *fields: int) -> None: ...
    def add_spans(self, request: RequestState, spans: Sequence[int]) -> None: ...
    def add_times(self, request: RequestState, times: Sequence[int]) -> None: ...
    def taken(self) -> tuple[Rows, Rows]: ...


class Journal:
    """The rows since the last flush. Written and flushed on the event loop only.

    Attributes:
        spans: a `pack_span` each, or those of a convoy; rows of one batch are added together.
        requests: a `pack_request` each, or those of a convoy.
        ways: those that have rows of requests that went through their Ops in one go.
        spans_beside: how many spans there are beside one for each of `spans`.
        parts: a `pack_part` each.
        flushes: how many there were that had anything in them.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks: list[Sink] = list(sinks)
        self.spans: list[bytes] = []
        self.requests: list[bytes] = []
        self.ways: list[TripRowForm] = []
        self.spans_beside: int = 0
        self.parts: list[bytes] = []
        self.flushes: int = 0

    def flush_if_long(self) -> None:
        """Flush if that is due; called between batches, so that none is torn."""
        if len(self.spans) + self.spans_beside >= MAX_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand what there is to the sinks; costs nothing if there is nothing."""
        if self.parts:
            self.flush_parts()
        if not (self.spans or self.requests or self.ways):
            return
        self.flushes += 1
        spans = np.frombuffer(b"".join(self.spans), SPAN)
        requests = np.frombuffer(b"".join(self.requests), REQUEST)
        self.spans.clear()
        self.requests.clear()
        for form in self.ways:
            its_spans, its_requests = form.taken()
            spans, requests = _joined(spans, its_spans), _joined(requests, its_requests)
        self.ways.clear()
        self.spans_beside = 0
        for sink in self.sinks:
            try:
                sink.notify(spans, requests)
            except Exception:  # an observer: its failure must not affect requests
                _LOGGER.exception("%s failed to take in what happened", type(sink).__name__)

    def flush_parts(self) -> None:
        """Hand what there is of parts to the sinks that read them; call it when it is due."""
        parts = np.frombuffer(b"".join(self.parts), PART)
        self.parts.clear()
        for sink in self.sinks:
            try:
                if isinstance(sink, PartSink):
                    sink.notify_parts(parts)
            except Exception:  # an observer: its failure must not affect requests
                _LOGGER.exception("%s failed to take in parts", type(sink).__name__)


# Packed they take a quarter of the time of an object each.
pack_span: Callable[..., bytes] = struct.Struct(f"{SPAN.itemsize // 8}q").pack
"""One row of SPAN: its fields, in order."""

pack_request: Callable[..., bytes] = struct.Struct(f"{REQUEST.itemsize // 8}q").pack
"""One row of REQUEST: its fields, in order."""


def _joined(some: Rows, more: Rows) -> Rows:
    if not len(some):
        return more
    # By their names numpy joins fifteen times as slowly.
    return np.concatenate([some.view(np.int64), more.view(np.int64)]).view(some.dtype)


pack_part: Callable[..., bytes] = struct.Struct(f"{PART.itemsize // 8}q").pack
"""One row of PART: its fields, in order."""


@dataclass(frozen=True, slots=True)
class EngineObservers:
    """Callbacks on the event loop, which must not block.

    `journal` takes down spans and requests. `on_failure` and `on_success` are called when a
    request was answered; `profile` writes what a caller gets who asked for a profile;
    `begin_trace` makes of (data id, the caller's traceparent or "") the request's own, or "".
    `on_step` gets (data id, index of the Op, sequence's id, slot) of each step at a worker.
    """

    journal: Journal | None = None
    on_failure: Callable[[RequestState, PipelineError], None] = lambda request, error: None
    on_success: Callable[[RequestState], None] | None = None
    profile: Callable[[RequestState], str] | None = None
    begin_trace: Callable[[int, str], str] | None = None
    on_step: Callable[[int, int, int | str, int], None] | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns

    def tell(self, request: RequestState, target: int) -> None:
        """Say how a request ended, which was for `target`, see REQUEST; never raises."""
        try:
            if request.convoy is not None and request.convoy.tell(self, request, target):
                return
            if self.journal is not None:
                request.end_ns = request.end_ns or self.clock_ns()
                if request.way is None or not _tell_way(request, target):
                    self.journal.requests.append(packed_request_of(request, target))
            if request.error is not None:
                self.on_failure(request, request.error)
            elif self.on_success is not None:
                self.on_success(request)
        except Exception:  # an observer: its failure must not affect requests
            _LOGGER.exception("not all could be told how a request ended")


def _tell_way(request: RequestState, target: int) -> bool:
    """Take down the spans that wait in a request; return whether the request is in their row."""
    assert request.way is not None, "asked of no other"
    rows, times = request.way
    is_one = request.error is None and request.outcome == _OK and target == PIPELINE
    if is_one:
        rows.add(
            request.data_id,
            request.rows,
            request.start_ns,
            request.admitted_ns,
            request.dispatched_ns,
            request.completed_ns,
            request.end_ns,
            *times,
        )
    else:
        request.way = None
        rows.add_spans(request, times)
    return is_one


def packed_request_of(request: RequestState, target: int) -> bytes:
    """Return its row of REQUEST."""
    code = 0 if request.error is None else int(request.error.code)
    if code.bit_length() > 63:
        code = int(ErrorCode.PRODUCT_ERROR)
    return pack_request(
        request.data_id,
        target,
        request.rows,
        request.outcome,
        code,
        request.start_ns,
        request.admitted_ns or request.end_ns,  # it may have ended while it waited
        request.dispatched_ns,
        request.completed_ns or request.end_ns,
        request.end_ns,
        request.input_ns,
        request.infer_ns,
        request.output_ns,
    )
