"""Journal: rows of integers for everything that happens; statistics, logs and traces read them.

A span is one request's pass through one Op. The hot path appends numbers to a `Journal` (0.3 us);
statistics, tracer, profiles, metrics and traces read its rows later, many at a time, with numpy.
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

from pipeline.errors import ErrorCode, NoRoomError, PipelineError, QueueLimitError, TooLateError

if TYPE_CHECKING:
    from pipeline.engine.request import RequestState

_LOGGER = logging.getLogger(__name__)

MAX_ROWS = 2048
"""Rows before a flush; a flush takes some 0.5 us for each."""


class Outcome(enum.IntEnum):
    """The ending of a span or a request. The failures are Triton's reasons, and PRODUCT."""

    OK = 0
    REJECTED = 1  # its deadline passed before it ran
    CANCELED = 2  # the client left
    BACKEND = 3  # user code or a model failed, or took too long
    OTHER = 4  # a worker was lost, the server stops, the request failed elsewhere
    PRODUCT = 5  # the request itself was at fault: a product error, or an invalid request


_OK = int(Outcome.OK)

BY_CALLERS = (Outcome.CANCELED, Outcome.PRODUCT)
"""Failures that do not concern the health of the service."""


def outcome_of(error: PipelineError) -> Outcome:
    """Return how a span or request ended that failed with `error` after it was admitted."""
    if isinstance(error, QueueLimitError | NoRoomError):  # it reached no worker
        return Outcome.REJECTED if isinstance(error, TooLateError) else Outcome.OTHER
    return Outcome.PRODUCT if error.is_callers else Outcome.BACKEND


FROM_OUTSIDE = (Outcome.REJECTED, Outcome.CANCELED)
"""Outcomes that no Op has caused."""

PIPELINE = -1
"""`target` of a request for the whole graph."""

NO_WORKER = -1
"""`worker` of a span that never ran; its `batch` is -1, and its times are that of its end."""


class OpSpan(NamedTuple):
    """One request's pass through one Op: a row of SPAN, as `op_spans` yields it.

    All fields are integers. Times are ns of `time.monotonic_ns`; all except `ready_ns` are those of
    the whole batch. Add `wall_offset_ns` for the wall clock.
    """

    op: int  # index in Graph.ops
    worker: int
    batch: int  # running number of the Op's batches; rows of a batch are adjacent
    data_id: int
    rows: int  # samples of the request: its batch size, >= 1
    outcome: int  # an Outcome
    ready_ns: int  # the request could have started
    start_ns: int  # preprocess of the batch began
    preprocess_end_ns: int  # process began
    process_end_ns: int  # postprocess began
    end_ns: int
    # The loop had the result, for a trip of all its Ops at once; or a request to a model ended.
    result_received_ns: int


class RequestRecord(NamedTuple):
    """One request from its arrival to its answer: a row of REQUEST, as `request_records` yields it.

    All fields are integers. Times are ns of `time.monotonic_ns`.
    """

    data_id: int
    target: int  # PIPELINE, or the index of its only Op
    rows: int
    outcome: int  # an Outcome
    code: int  # err_no; 0: no error
    start_ns: int  # arrived
    admitted_ns: int  # entered the graph; unpack began
    dispatched_ns: int  # at the first Ops; 0: it never got there
    completed_ns: int  # left the graph; pack began
    end_ns: int  # answered
    input_ns: int  # sums over its spans that succeeded: preprocess,
    infer_ns: int  # process,
    output_ns: int  # postprocess


class PartKind(enum.IntEnum):
    """Kind of a row of PART, as of Triton's responses."""

    GIVEN = 0
    EMPTY = 1  # the end of a stream that succeeded
    FAILED = 2
    CANCELED = 3


class PartRecord(NamedTuple):
    """One part of a stream, or its end: a row of PART; integers and ns as in REQUEST."""

    data_id: int
    target: int  # PIPELINE: a part of the answer; otherwise the index of the Op that made it
    number: int  # of the part, from 0
    kind: int  # a PartKind
    # when the part before it was made; for the first part, when its request or batch began
    start_ns: int
    made_ns: int  # the part was made: pack began
    end_ns: int  # the part was sent


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
    """Return the difference of wall clock and `time.monotonic_ns`, the clock of the rows."""
    return time.time_ns() - time.monotonic_ns()


class Sink(Protocol):
    """A reader of the journal, called on the event loop: it must not block.

    It may keep the arrays, but not write to them. The spans of a request come before its end, in
    the same call or an earlier one, except spans that outlive the request. `op_spans` and
    `request_records` read the rows by name. Exceptions are only logged.
    """

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Read the rows since the last call, which was at most about a second ago.

        Args:
            spans: a row of SPAN, see `OpSpan`, for each request's pass through an Op that ended.
            requests: a row of REQUEST, see `RequestRecord`, for each request that was answered.
                At least one of both is not empty.
        """


@runtime_checkable
class PartSink(Sink, Protocol):
    """A sink that also reads parts of streams; `notify` may come before or after it."""

    def notify_parts(self, parts: Rows) -> None:
        """Read the parts since the last call: a row of PART for each; at least one."""


@runtime_checkable
class FillerSink(Sink, Protocol):
    """A sink that also counts fillers: rows of a batch that belong to no request."""

    def notify_fillers(self, op: int, batch: int, rows: int) -> None:
        """Note how many rows of a batch are fillers."""


class TripRowForm(Protocol):
    """Rows of requests that ran through the same Ops in one trip; see `spans.TripRows`."""

    def add(self, *fields: int) -> None: ...
    def add_spans(self, request: RequestState, spans: Sequence[int]) -> None: ...
    def add_times(self, request: RequestState, times: Sequence[int]) -> None: ...
    def take_rows(self) -> tuple[Rows, Rows]: ...


class Journal:
    """The rows since the last flush. Written and flushed on the event loop only.

    Attributes:
        spans: a `pack_span` each, or the spans of a convoy; rows of one batch are added together.
        requests: a `pack_request` each, or the requests of a convoy.
        trip_rows: the TripRows that have rows now.
        extra_spans: how many spans there are more than entries in `spans`.
        parts: a `pack_part` each.
        flushes: the number of flushes that had rows.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks: list[Sink] = list(sinks)
        self.spans: list[bytes] = []
        self.requests: list[bytes] = []
        self.trip_rows: list[TripRowForm] = []
        self.extra_spans: int = 0
        self.parts: list[bytes] = []
        self.flushes: int = 0

    def flush_if_long(self) -> None:
        """Flush if there are many rows; called between batches, so that no batch is split."""
        if len(self.spans) + self.extra_spans >= MAX_ROWS:
            self.flush()

    def flush(self) -> None:
        """Give the rows to the sinks; costs nothing if there are none."""
        if self.parts:
            self.flush_parts()
        if not (self.spans or self.requests or self.trip_rows):
            return
        self.flushes += 1
        spans = np.frombuffer(b"".join(self.spans), SPAN)
        requests = np.frombuffer(b"".join(self.requests), REQUEST)
        self.spans.clear()
        self.requests.clear()
        for form in self.trip_rows:
            trip_spans, trip_requests = form.take_rows()
            spans, requests = _joined(spans, trip_spans), _joined(requests, trip_requests)
        self.trip_rows.clear()
        self.extra_spans = 0
        for sink in self.sinks:
            try:
                sink.notify(spans, requests)
            except Exception:  # an observer: its failure must not affect requests
                _LOGGER.exception("%s failed to read the journal", type(sink).__name__)

    def flush_parts(self) -> None:
        """Give the parts to the sinks that read them; call it only if there are some."""
        parts = np.frombuffer(b"".join(self.parts), PART)
        self.parts.clear()
        for sink in self.sinks:
            try:
                if isinstance(sink, PartSink):
                    sink.notify_parts(parts)
            except Exception:  # an observer: its failure must not affect requests
                _LOGGER.exception("%s failed to read the journal's parts", type(sink).__name__)


# Packing takes a quarter of the time that an object takes.
pack_span: Callable[..., bytes] = struct.Struct(f"{SPAN.itemsize // 8}q").pack
"""One row of SPAN: its fields, in order."""

pack_request: Callable[..., bytes] = struct.Struct(f"{REQUEST.itemsize // 8}q").pack
"""One row of REQUEST: its fields, in order."""


def _joined(rows: Rows, other_rows: Rows) -> Rows:
    if not len(rows):
        return other_rows
    # numpy joins arrays with named fields fifteen times slower.
    return np.concatenate([rows.view(np.int64), other_rows.view(np.int64)]).view(rows.dtype)


pack_part: Callable[..., bytes] = struct.Struct(f"{PART.itemsize // 8}q").pack
"""One row of PART: its fields, in order."""


@dataclass(frozen=True, slots=True)
class EngineObservers:
    """Callbacks on the event loop, which must not block.

    Attributes:
        journal: records spans and requests.
        on_failure: called when a request was answered with an error.
        on_success: called when a request was answered.
        profile: writes the profile for a client that asked for one.
        begin_trace: makes the request's traceparent, or "", of its data id and the client's
            traceparent or "".
        on_step: gets (data id, index of the Op, sequence's id, slot) of each step at a worker.
    """

    journal: Journal | None = None
    on_failure: Callable[[RequestState, PipelineError], None] = lambda request, error: None
    on_success: Callable[[RequestState], None] | None = None
    profile: Callable[[RequestState], str] | None = None
    begin_trace: Callable[[int, str], str] | None = None
    on_step: Callable[[int, int, int | str, int], None] | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns

    def report_end(self, request: RequestState, target: int) -> None:
        """Report the end of a request, which was for `target`, see REQUEST; never raises."""
        try:
            if request.convoy is not None and request.convoy.report_ends(self, request, target):
                return
            if self.journal is not None:
                request.end_ns = request.end_ns or self.clock_ns()
                if request.trip_rows is None or not _record_trip(request, target):
                    self.journal.requests.append(packed_request_of(request, target))
            if request.error is not None:
                self.on_failure(request, request.error)
            elif self.on_success is not None:
                self.on_success(request)
        except Exception:  # an observer: its failure must not affect requests
            _LOGGER.exception("an observer failed at the end of a request")


def _record_trip(request: RequestState, target: int) -> bool:
    """Record the spans that wait in a request; return whether this recorded the request also."""
    assert request.trip_rows is not None, "the caller checks it"
    rows, times = request.trip_rows
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
        request.trip_rows = None
        rows.add_spans(request, times)
    return is_one


def packed_request_of(request: RequestState, target: int) -> bytes:
    """Return the request's row of REQUEST."""
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
