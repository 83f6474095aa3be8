"""Sinks of the dashboard: slow and failed requests, raw rows, and the last minute by seconds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.ma  # numpy would import it later, maybe without free file descriptors

from pipeline.engine.journal.journal import BY_CALLERS, PIPELINE, REQUEST, SPAN, Outcome, Rows
from pipeline.errors import utf8_text
from pipeline.observe.sink import SinkContext
from pipeline.observe.snapshot import (
    LATENCY_STEPS,
    MinuteSeries,
    RecentRequest,
    RecentSpan,
    Snapshot,
)
from pipeline.observe.tables import (
    Counters,
    Integers,
    Positions,
    batches,
    buckets,
    joined,
    percentile,
    tally,
)

UNPACK, PACK = "@unpack", "@pack"
"""`op` of the two spans that every recent request has besides those of its Ops: the work of the
RequestOp and of the ResponseOp. The wait for admission is the queueing time of the first."""

MAX_SLOW = 10
"""Number of slowest requests that are kept."""

MAX_FAILED = 10
"""Number of failed requests that are kept."""

_SLOT_NS = 5 * 10**9  # step of the moving window
_SLOTS = 12  # slots of the window: a minute
_TIMES_OF_SPAN = (
    "ready_ns",
    "start_ns",
    "preprocess_end_ns",
    "process_end_ns",
    "end_ns",
    "result_received_ns",
)
_MAX_SPANS = 100  # of one request: a loop may run an Op any number of times
_MAX_ERRORS = 256  # texts are kept until the flush brings their rows
_ERROR_CHARS = 500


@dataclass(slots=True)
class _Candidate:
    """A request to show: its row, and its details once they are looked up."""

    row: dict[str, int]
    log_id: int = 0
    error: str = ""
    shown: RecentRequest | None = None

    @property
    def took_ns(self) -> int:
        return self.row["end_ns"] - self.row["start_ns"]


class SlowRequestLog:
    """A sink that keeps slow and failed requests, with all their spans.

    Args:
        names: of the Ops, in graph order.
        clock_ns: `time.monotonic_ns`, the clock of the rows.
        wall_ns: `time.time_ns`.
    """

    def __init__(
        self,
        names: Sequence[str],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._names = list(names)
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._pending = PendingSpans()
        self._slots: dict[int, list[_Candidate]] = {}
        self._failures: deque[_Candidate] = deque(maxlen=MAX_FAILED)
        self._callers: deque[_Candidate] = deque(maxlen=MAX_FAILED)  # failures caused by callers
        self._errors: dict[int, tuple[int, str]] = {}

    def failed(self, data_id: int, log_id: int, error: object) -> None:
        """Note a request's error text, which its row lacks; before or after its end."""
        self._errors[data_id] = (log_id, utf8_text(str(error)[:_ERROR_CHARS]))
        if len(self._errors) > _MAX_ERRORS:
            del self._errors[next(iter(self._errors))]

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Add the rows since the last call."""
        self._pending.add(spans)
        if not len(requests):
            return
        self._keep_slow(requests)
        self._keep_failed(requests)
        self._pending.end(requests["data_id"])
        # most requests are overtaken by slower ones before, and are never looked up
        if self._pending.is_full:
            requests_kept = itertools.chain.from_iterable(self._slots.values())
            self._look_up([*requests_kept, *self._failures, *self._callers])
            self._pending.compact()
        self._forget()

    def slowest(self) -> list[RecentRequest]:
        """Return the slowest requests of the last minute that succeeded, slowest first."""
        self._forget()
        candidates = itertools.chain.from_iterable(self._slots.values())
        return self._look_up(
            sorted(candidates, key=lambda candidates: -candidates.took_ns)[:MAX_SLOW]
        )

    def failures(self) -> list[RecentRequest]:
        """Return the last failed requests, and the last that failed by their callers' fault."""
        failures = [*reversed(self._failures), *reversed(self._callers)]
        return [self._with_text(shown) for shown in self._look_up(failures)]

    def _keep_slow(self, requests: Rows) -> None:
        slot = int(requests["end_ns"].max()) // _SLOT_NS
        slowest = self._slots.setdefault(slot, [])
        slow = _slow(requests, slowest)
        if len(slow):
            slowest += [_Candidate(row) for row in _dicts(requests.take(slow))]
            slowest.sort(key=lambda one: -one.took_ns)
            del slowest[MAX_SLOW:]

    def _keep_failed(self, requests: Rows) -> None:
        failed = requests.take(np.flatnonzero(requests["outcome"] > 0))
        if not len(failed):  # the common case
            return
        is_callers = np.isin(failed["outcome"], BY_CALLERS)
        for failures, which in ((self._failures, ~is_callers), (self._callers, is_callers)):
            for row in _dicts(failed[which][-MAX_FAILED:]):
                failures.append(_Candidate(row, *self._errors.get(row["data_id"], (0, ""))))

    def _forget(self) -> None:
        oldest = self._clock_ns() // _SLOT_NS - _SLOTS
        for slot in [slot for slot in self._slots if slot <= oldest]:
            del self._slots[slot]

    def _with_text(self, request: RecentRequest) -> RecentRequest:
        """Add the error text that `failed` received after the row's flush."""
        if request.error or request.data_id not in self._errors:
            return request
        log_id, text = self._errors[request.data_id]
        return msgspec.structs.replace(request, log_id=log_id, error=text)

    def _look_up(self, candidates: Sequence[_Candidate]) -> list[RecentRequest]:
        """Return the details of these requests, with their spans at the first lookup."""
        unknown = [candidate.row["data_id"] for candidate in candidates if candidate.shown is None]
        spans = self._pending.find(unknown) if unknown else None
        for candidate in candidates:
            if candidate.shown is None and spans is not None:
                candidate.shown = self._shown(candidate, spans)
        return [candidate.shown for candidate in candidates if candidate.shown is not None]

    def _shown(self, candidate: _Candidate, own_spans: SizedSpans) -> RecentRequest:
        row, to_wall_ns = candidate.row, self._wall_ns() - self._clock_ns()
        data_id, start_ns = row["data_id"], row["start_ns"]
        spans = self._spans_of(data_id, start_ns, own_spans)
        return RecentRequest(
            data_id=data_id,
            log_id=candidate.log_id,
            ended_ms=(row["end_ns"] + to_wall_ns) // 10**6,
            took_ns=candidate.took_ns,
            outcome=row["outcome"],
            code=row["code"],
            error=candidate.error,
            spans=[_unpacking(row), *spans, *_packing(row)],
        )

    def _spans_of(self, data_id: int, start_ns: int, spans: SizedSpans) -> Iterator[RecentSpan]:
        mine = np.flatnonzero(spans.spans["data_id"] == data_id)
        order = np.argsort(spans.spans["ready_ns"][mine], kind="stable")
        for index in mine[order][:_MAX_SPANS]:
            span = spans.spans[index]
            times_ns = {name: int(span[name]) - start_ns for name in _TIMES_OF_SPAN}
            yield RecentSpan(
                op=self._names[span["op"]],
                outcome=int(span["outcome"]),
                rows=int(span["rows"]),
                batch_requests=int(spans.sizes[index]),
                **times_ns,
            )


def _dicts(requests: Rows) -> Iterator[dict[str, int]]:
    for row in requests.tolist():
        yield dict(zip(REQUEST.names or (), row, strict=True))


def _slow(requests: Rows, slowest: list[_Candidate]) -> Positions:
    """Return the places of the rows that are among the slowest, together with the ones in
    `kept`."""
    took_ns = requests["end_ns"] - requests["start_ns"]
    floor_ns = slowest[-1].took_ns if len(slowest) >= MAX_SLOW else -1
    slow: Positions = np.flatnonzero(took_ns > floor_ns)
    slow = slow[requests["outcome"].take(slow) == Outcome.OK]
    if len(slow) > MAX_SLOW:
        slow = slow[np.argpartition(took_ns[slow], -MAX_SLOW)[-MAX_SLOW:]]
    return slow


def _unpacking(request: dict[str, int]) -> RecentSpan:
    # 0: it was never admitted, or dispatched.
    admitted_ns = request["admitted_ns"] or request["end_ns"]
    dispatched_ns = request["dispatched_ns"] or request["end_ns"]
    outcome = Outcome.OK if request["dispatched_ns"] else request["outcome"]
    return _hook_span(UNPACK, outcome, request, request["start_ns"], admitted_ns, dispatched_ns)


def _packing(request: dict[str, int]) -> list[RecentSpan]:
    completed_ns, end_ns = request["completed_ns"], request["end_ns"]
    if not request["dispatched_ns"] or completed_ns >= end_ns:
        return []
    return [_hook_span(PACK, Outcome.OK, request, completed_ns, completed_ns, end_ns)]


def _hook_span(op: str, outcome: int, request: dict[str, int], *times_ns: int) -> RecentSpan:
    ready_ns, start_ns, end_ns = (time_ns - request["start_ns"] for time_ns in times_ns)
    return RecentSpan(
        op=op,
        outcome=int(outcome),
        rows=request["rows"],
        batch_requests=1,
        ready_ns=ready_ns,
        start_ns=start_ns,
        preprocess_end_ns=start_ns,
        process_end_ns=end_ns,
        end_ns=end_ns,
        result_received_ns=end_ns,
    )


def open_slow_requests(context: SinkContext, options: None) -> SlowRequestLog:
    """Open the sink `slow_requests`, which fills slow and failed requests of the Snapshot."""
    recent = SlowRequestLog(context.op_names)

    def fill(snapshot: Snapshot) -> None:
        snapshot.slowest, snapshot.failed = recent.slowest(), recent.failures()

    context.on_failure(recent.failed)
    context.on_snapshot(fill)
    return recent


# Recording ------------------------------------------------------------------------------------

MAX_RECORDED = 20_000
"""Maximum of spans, and of requests, in a recording of the whole server: a browser can show as
many.
"""


class Recorded(msgspec.Struct, array_like=True):
    """The recorded rows of one replica. `is_cut`: there were more than its limit."""

    replica: int
    is_cut: bool
    span_bytes: bytes
    request_bytes: bytes

    @property
    def spans(self) -> Rows:
        """Return the rows of SPAN."""
        return np.frombuffer(self.span_bytes, SPAN)

    @property
    def requests(self) -> Rows:
        """Return the rows of REQUEST."""
        return np.frombuffer(self.request_bytes, REQUEST)


def read_recording(packed: bytes) -> Recorded:
    """Unpack the bytes that `Recording.record` returned."""
    return msgspec.msgpack.decode(packed, type=Recorded)


class Recording:
    """A sink that keeps raw rows during recordings.

    Args:
        replica: number of this replica of the server.
        replicas: number of replicas, which share the limit of a recording.
    """

    def __init__(self, replica: int = 0, replicas: int = 1) -> None:
        self._replica = replica
        self._max_rows = MAX_RECORDED // replicas
        self._running: list[tuple[_RowBuffer, _RowBuffer]] = []
        self._ending = asyncio.Event()

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Add the rows since the last call."""
        for kept_spans, kept_requests in self._running:
            kept_spans.add(spans)
            kept_requests.add(requests)

    async def record(self, seconds: float, flush: Callable[[], None]) -> bytes:
        """Record requests that end in the next `seconds`, or before `end`, for `read_recording`.

        Args:
            seconds: duration.
            flush: `Journal.flush`, so that the recording begins and ends on time.
        """
        flush()
        spans, requests = buffers = _RowBuffer(self._max_rows), _RowBuffer(self._max_rows)
        self._running.append(buffers)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), seconds)
            flush()
        finally:
            self._running = [other for other in self._running if other is not buffers]
        recorded = Recorded(
            replica=self._replica,
            is_cut=spans.is_cut or requests.is_cut,
            span_bytes=spans.to_bytes(),
            request_bytes=requests.to_bytes(),
        )
        return msgspec.msgpack.encode(recorded)

    def end(self) -> None:
        """End all recordings now, because the server stops."""
        self._ending.set()


def open_recording(context: SinkContext, options: None) -> Recording:
    """Open the sink `recording`, which answers "record <seconds>"."""
    recording = Recording(context.replica or 0, context.id_step)

    async def record(seconds: str) -> bytes:
        return await recording.record(float(seconds), context.flush)

    context.on_stop(recording.end)
    context.on_question("record", record)
    return recording


class _RowBuffer:
    """Up to `max_rows` rows."""

    def __init__(self, max_rows: int) -> None:
        self.is_cut = False
        self._pieces: list[Rows] = []
        self._left = max_rows

    def add(self, rows: Rows) -> None:
        self.is_cut |= len(rows) > self._left
        piece = rows[: self._left]
        if len(piece):  # an empty piece would keep all rows of the flush in memory
            self._pieces.append(piece)
            self._left -= len(piece)

    def to_bytes(self) -> bytes:
        return b"".join(piece.tobytes() for piece in self._pieces)


# Spans of requests that have not ended ----------------------------------------------------------


_MIN_KEPT = 8 * 1024  # spans, or ended requests, before they are matched
_MAX_PIECES = 32  # each is searched for a request
_MAX_KEPT = 64 * 1024  # spans of active requests
_MAX_AGE_NS = 600 * 10**9


class SizedSpans(NamedTuple):
    """Spans, and for each the number of requests in its batch: 0 if it never ran."""

    spans: Rows
    sizes: Integers


@dataclass(frozen=True, slots=True)
class _Piece:
    """Spans of one flush, with batch sizes counted on demand; or the rest of several flushes."""

    spans: Rows
    sizes: Integers | None = None

    def take(self, which: Positions) -> SizedSpans:
        spans = self.spans.take(which)
        if self.sizes is not None:
            return SizedSpans(spans, self.sizes.take(which))
        if not len(which):
            return SizedSpans(spans, np.zeros(0, np.int64))
        own_batches = batches(self.spans)
        sizes = own_batches.sizes.take(own_batches.of(which))
        return SizedSpans(spans, np.where(spans["batch"] < 0, 0, sizes))


class PendingSpans:
    """Spans until their requests end.

    Spans of ended requests are dropped many at a time, so the cost for each row is small, however
    many requests are active.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._ended: list[Integers] = []
        self._count = self._ended_count = 0
        self._limit = _MIN_KEPT

    def __len__(self) -> int:
        return self._count

    def add(self, spans: Rows) -> None:
        """Add the spans of one flush, which has whole batches."""
        if len(spans):
            self._pieces.append(_Piece(spans))
            self._count += len(spans)

    def find(self, data_ids: Sequence[int]) -> SizedSpans:
        """Return all spans of a few requests that have not been dropped."""
        request_ids = np.array(data_ids, np.int64)
        return _joined(
            [
                piece.take(np.flatnonzero(np.isin(piece.spans["data_id"], request_ids)))
                for piece in self._pieces
            ]
        )

    def end(self, data_ids: Integers) -> None:
        """Note ended requests. Their spans stay until `compact`."""
        if self._pieces:
            self._ended.append(data_ids.copy())
            self._ended_count += len(data_ids)

    @property
    def is_full(self) -> bool:
        """Return whether it is time for `compact`."""
        larger = max(self._count, self._ended_count)  # refused requests have no spans
        return larger > self._limit or len(self._pieces) > _MAX_PIECES

    def compact(self) -> None:
        """Drop the spans of requests that have ended, and very old spans."""
        if self._pieces:
            self._drop_ended()
        self._ended, self._ended_count = [], 0

    def _drop_ended(self) -> None:
        since_ns = (
            max(int(piece.spans["result_received_ns"].max()) for piece in self._pieces)
            - _MAX_AGE_NS
        )
        data_ids = np.concatenate([piece.spans["data_id"] for piece in self._pieces])
        is_open = np.isin(data_ids, np.concatenate(self._ended), invert=True)
        pieces, begin = [], 0
        for piece in self._pieces:
            end = begin + len(piece.spans)
            which = np.flatnonzero(is_open[begin:end])
            # Spans may outlive their request.
            pieces.append(
                piece.take(which[piece.spans["result_received_ns"].take(which) > since_ns])
            )
            begin = end
        left = _joined(pieces)
        piece = _Piece(left.spans[-_MAX_KEPT:], left.sizes[-_MAX_KEPT:])
        self._count = len(piece.spans)
        self._limit = max(_MIN_KEPT, 2 * self._count)
        self._pieces = [piece] if self._count else []


def _joined(pieces: Sequence[SizedSpans]) -> SizedSpans:
    pieces = [piece for piece in pieces if len(piece.spans)]
    if not pieces:
        return SizedSpans(np.empty(0, SPAN), np.zeros(0, np.int64))
    return SizedSpans(
        joined([piece.spans for piece in pieces]), np.concatenate([piece.sizes for piece in pieces])
    )


# The last minute second by second ---------------------------------------------------------------


SECONDS = 60
_NS = 1_000_000_000
_SAMPLE_S = 1.0


class _Second:
    """The requests of one second; their percentile is computed once, on demand."""

    __slots__ = ("_latency", "_p99_ns", "inside", "succeeded")

    def __init__(self) -> None:
        self._latency: Counters = np.zeros(LATENCY_STEPS, np.uint64)
        self._p99_ns: int | None = 0
        self.succeeded = 0
        self.inside = 0

    def add(self, took_ns: Integers) -> None:
        tally(self._latency, buckets(took_ns))
        self.succeeded += len(took_ns)
        self._p99_ns = None

    @property
    def p99_ns(self) -> int:
        if self._p99_ns is None:
            self._p99_ns = int(percentile(self._latency.tolist(), 0.99))
        return self._p99_ns


_NOTHING = _Second()


class LastMinute:
    """A sink that counts requests of the whole pipeline, by the second of their end."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._seconds: dict[int, _Second] = {}

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Add the rows since the last call."""
        is_well = (requests["target"] == PIPELINE) & (requests["outcome"] == Outcome.OK)
        good = requests[is_well]
        if not len(good):
            return
        ended, took = good["end_ns"] // _NS, np.maximum(good["end_ns"] - good["start_ns"], 0)
        for second in np.unique(ended).tolist():
            self._at(second).add(took[ended == second])

    def sample(self, inside: int) -> None:
        """Note the number of active and queued requests."""
        now = self._at(self._clock_ns() // _NS)
        now.inside = max(now.inside, inside)

    def series(self) -> MinuteSeries:
        """Return the last 60 complete seconds."""
        end = self._clock_ns() // _NS
        known = [self._seconds.get(second, _NOTHING) for second in range(end - SECONDS, end)]
        return MinuteSeries(
            end_s=end,
            succeeded=[entry.succeeded for entry in known],
            p99_ns=[entry.p99_ns for entry in known],
            inside=[entry.inside for entry in known],
        )

    def _at(self, second: int) -> _Second:
        entry = self._seconds.get(second)
        if entry is None:
            entry = self._seconds[second] = _Second()
            for old in [key for key in self._seconds if key < second - SECONDS]:
                del self._seconds[old]
        return entry


def open_last_minute(context: SinkContext, options: None) -> LastMinute:
    """Open the sink `last_minute`, which fills the minute of the Snapshot."""
    minute = LastMinute()

    def sample() -> None:
        state = context.state()
        minute.sample(state.inside + state.waiting)

    def fill(snapshot: Snapshot) -> None:
        snapshot.minute = minute.series()

    context.every("last minute", _SAMPLE_S, sample)
    context.on_snapshot(fill)
    return minute


def merged(replicas: Sequence[MinuteSeries]) -> MinuteSeries:
    """Merge the minutes of all replicas: sums, and the maximum of the 99th percentiles."""
    known = [replica for replica in replicas if replica.end_s]
    end_s = max((replica.end_s for replica in known), default=0)

    def column(name: str, merge: Callable[[tuple[int, ...]], int]) -> list[int]:
        aligned = []  # to end at `end_s`: 0 where nothing is known
        for replica in known:
            missing = min(SECONDS, end_s - replica.end_s)
            aligned.append([*getattr(replica, name)[missing:], *[0] * missing])
        return [merge(of) for of in zip(*aligned, strict=True)]

    return MinuteSeries(
        end_s, column("succeeded", sum), column("p99_ns", max), column("inside", sum)
    )
