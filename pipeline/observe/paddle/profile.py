"""PROFILE lines: spans and requests as text, for the predecessor's tools and this library's.

A line has four fields between tabs: `PROFILE`, `pid:<pid>`, the predecessor's events
(`prep#[<op>|<worker>]_0:<epoch us> ..._1:<us> midp#... postp#...`, or those of a request), and a
field that only this library writes: the complete rows as JSON. The line of a span that never ran
has no event and begins with `PROFILE-NONE`: the predecessor's reader fails on lines without events.

In a sample (see `observe.analysis.sampling`) each line says how many requests it stands for.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TextIO
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.engine.journal.journal import (
    PIPELINE,
    REQUEST,
    SPAN,
    OpSpan,
    Outcome,
    Rows,
    wall_offset_ns,
)
from pipeline.errors import utf8_text
from pipeline.observe.analysis.sampling import (
    LOAD,
    NO_LOADS,
    NO_STREAMS,
    STREAM,
    OpenStreams,
    Sample,
    SampledRows,
    Sampler,
    Strides,
)
from pipeline.observe.background import Background
from pipeline.observe.sink import SinkContext
from pipeline.observe.tables import columns
from pipeline.system.stdio import write_out

_MARK = "PROFILE\tpid:"
_MARK_OF_NONE = "PROFILE-NONE\tpid:"

_SPAN_TIMES = [name for name in OpSpan._fields if name.endswith("_ns")]
_SHARED = ("op", "worker", "batch", *_SPAN_TIMES[1:])
_OWN = ("data_id", "rows", "outcome", "ready_ns")
_REQUEST_TIMES = ("start_ns", "admitted_ns", "dispatched_ns", "completed_ns", "end_ns")

# The ranges that a server writes: the code that adds up values relies on them.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Weight = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Time = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
Duration = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=2**31)]
DataId = Annotated[int, msgspec.Meta(ge=-1, le=10**18)]
Ending = Annotated[int, msgspec.Meta(ge=-1, le=int(max(Outcome)))]


class _BatchLine(msgspec.Struct, tag_field="kind", tag="batch", omit_defaults=True):
    """Fourth field: the requests of one batch, or the requests that ended together without a batch.

    `stands_for`: number of requests with spans in such batches; None: only its own.
    """

    op: str
    worker: Number
    batch: Time
    times: tuple[Time, Time, Time, Time, Time]  # start, prepared, processed, end, taken; ns
    requests: list[tuple[DataId, Int64, Ending, Time]]  # data_id, rows, outcome, ready in ns
    stands_for: Weight | None = None


_RequestRow = tuple[Int64, Ending, Int64, Time, Time, Time, Time, Time, Int64, Int64, Int64]
"""The fields of REQUEST from `rows` on."""


class _RequestLine(msgspec.Struct, tag_field="kind", tag="request", omit_defaults=True):
    """Fourth field: one request, and how many it stands for. `op` is its target; None: all Ops."""

    op: str | None
    data_id: DataId
    row: _RequestRow
    stands_for: Weight = 1


class _StreamLine(msgspec.Struct, tag_field="kind", tag="stream", omit_defaults=True):
    """Fourth field: one stream of a request. `op` is its source; None: the answer."""

    op: str | None
    data_id: DataId
    parts: Weight
    begin: Time
    first: Time
    last: Time
    stands_for: Weight = 1


class _LoadLine(msgspec.Struct, tag_field="kind", tag="load"):
    """Fourth field: how long of an interval a request was there, also if it has no line."""

    begin: Time
    end: Time
    busy: Duration


_Line = _BatchLine | _RequestLine | _StreamLine | _LoadLine
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


# --- lines out of rows ----------------------------------------------------------------------------


def profile_lines(
    spans: Rows,
    requests: Rows,
    names: Sequence[str],
    offset_ns: int = 0,
    strides: Strides | None = None,
) -> Iterator[str]:
    """Yield the lines of SPAN and REQUEST rows, with line breaks: one for each batch or request.

    Times that are still to come are 0. `offset_ns` is added to all known times:
    `wall_offset_ns()` for those of a journal. `strides` are the weights of a sample's rows.
    """
    pid = os.getpid()
    names = [utf8_text(name) for name in names]
    if strides is None:
        strides = Strides(np.ones(spans.size, np.int64), np.ones(requests.size, np.int64))
    for batch in _batches(_moved(spans, _SPAN_TIMES, offset_ns), strides.spans, names):
        yield _line(pid, _batch_events(batch), batch)
    rows = _moved(requests, _REQUEST_TIMES, offset_ns).tolist()
    for (data_id, target, *row), stride in zip(rows, strides.requests.tolist(), strict=True):
        name = None if target == PIPELINE else names[target]
        request = _RequestLine(name, data_id, tuple(row), stride)
        yield _line(pid, _request_events(data_id, row), request)


def stream_lines(streams: Rows, names: Sequence[str], offset_ns: int = 0) -> Iterator[str]:
    """Yield the lines of STREAM rows; `offset_ns` as of `profile_lines`."""
    for data_id, target, parts, *times, weight in streams.tolist():
        name = None if target == PIPELINE else utf8_text(names[target])
        begin_ns, first_ns, last_ns = (at + offset_ns if at > 0 else at for at in times)
        line = _StreamLine(name, data_id, parts, begin_ns, first_ns, last_ns, weight)
        yield _line(os.getpid(), [], line)


def load_lines(loads: Rows, offset_ns: int = 0) -> Iterator[str]:
    """Yield the lines of LOAD rows; `offset_ns` as of `profile_lines`."""
    for begin_ns, end_ns, busy_ns in loads.tolist():
        line = _LoadLine(begin_ns + offset_ns, end_ns + offset_ns, busy_ns)
        yield _line(os.getpid(), [], line)


def profile_text(request: bytes, spans: Sequence[bytes], names: Sequence[str]) -> str:
    """Return the profile for a client that asked for it: the lines of its rows.

    `pack_request` and `pack_span` made the rows; times are `time.monotonic_ns`.
    """
    rows, requests = np.frombuffer(b"".join(spans), SPAN), np.frombuffer(request, REQUEST)
    return "".join(profile_lines(rows, requests, names, wall_offset_ns()))


def _moved(rows: Rows, times: Sequence[str], offset_ns: int) -> Rows:
    """Return the rows with shifted times; 0 and -1 stand for unknown times and stay."""
    if not offset_ns:
        return rows
    moved = rows.copy()
    for name in times:
        column = moved[name]
        column[column > 0] += offset_ns
    return moved


def _batches(
    spans: Rows, strides: npt.NDArray[np.int64], names: Sequence[str]
) -> Iterator[_BatchLine]:
    """Yield neighbours that differ only in the fields of single requests."""
    if not spans.size:
        return
    differs = np.any([spans[name][1:] != spans[name][:-1] for name in _SHARED], axis=0)
    first = np.append(0, np.flatnonzero(differs) + 1)
    bounds = itertools.pairwise([*first.tolist(), spans.size])
    shared = columns(spans.take(first), *_SHARED).T.tolist()
    own = columns(spans, *_OWN).T.tolist()
    stands = np.add.reduceat(strides, first).tolist()
    for (op, worker, number, *times), (start, stop), stands_for in zip(
        shared, bounds, stands, strict=True
    ):
        is_whole = stands_for == stop - start
        yield _BatchLine(
            names[op], worker, number, times, own[start:stop], None if is_whole else stands_for
        )


def _line(pid: int, events: list[tuple[str, int, int]], data: _Line) -> str:
    mark = _MARK if events else _MARK_OF_NONE
    pairs = " ".join(f"{name}_0:{begin} {name}_1:{end}" for name, begin, end in events)
    return f"{mark}{pid}\t{pairs}\t{_encode(data).decode()}\n"


def _batch_events(line: _BatchLine) -> list[tuple[str, int, int]]:
    start, prepared, processed, end, _ = line.times
    if line.batch < 0:
        return []
    tag = f"#[{_quoted(line.op)}|{line.worker}]"
    return _known(
        ("prep" + tag, start, prepared), ("midp" + tag, prepared, processed),
        ("postp" + tag, processed, end),
    )  # fmt: skip


def _request_events(data_id: int, row: Sequence[int]) -> list[tuple[str, int, int]]:
    _, _, _, _, entered, begun, packing, end = row[:8]
    return _known(
        (f"prepack_{data_id}#@DAGExecutor", entered, begun),
        (f"call_{data_id}#DAG", begun, packing),
        (f"postpack_{data_id}#@DAGExecutor", packing, end),
    )


def _known(*spans: tuple[str, int, int]) -> list[tuple[str, int, int]]:
    """Return the spans with two known ends, in us."""
    return [(name, begin // 1000, end // 1000) for name, begin, end in spans if 0 < begin <= end]


def _quoted(name: str) -> str:
    """Return `name` with the separators of an event escaped, as in a URL."""
    return "".join(
        quote(char, safe="") if char.isspace() or char in "%:#|[]" else char for char in name
    )


# --- rows out of lines ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    """The rows of PROFILE lines. Times are ns since the epoch, unknown ones 0 or -1.

    Attributes:
        spans: SPAN rows in the order of their lines; `op` is an index into `names`.
        requests: REQUEST rows; `target` is such an index, or PIPELINE.
        names: names of the Ops, in the order of their first lines.
        span_pids: int64, the process of each span's engine. It distinguishes replicas, whose
            workers and batches have the same numbers. `request_pids` does so for requests.
        damaged: number of PROFILE lines that could not be read.
        sample: the weights of the rows.
        streams: STREAM rows; `target` as for requests.

    The predecessor's lines describe batches without their requests: such a span has -1 as data_id,
    rows, ready_ns and result_received_ns, and an invented `batch`. They do not have the outcome of
    a request: an answered one counts as OK.
    """

    spans: Rows
    requests: Rows
    names: tuple[str, ...]
    span_pids: npt.NDArray[np.int64]
    request_pids: npt.NDArray[np.int64]
    damaged: int
    sample: Sample
    streams: Rows = field(default_factory=lambda: NO_STREAMS)


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read the PROFILE lines of a file, also the predecessor's. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        # A file of another kind may have no line breaks, and any size.
        return parse_profile(iter(functools.partial(file.readline, _MAX_LINE), ""))


def parse_profile(lines: Iterable[str]) -> Profile:
    """Read lines, with or without their line breaks; see `read_profile`."""
    reader = _LineReader()
    for line in lines:
        reader.read(line)
    return reader.profile()


# The mark may follow a text that another writer did not end with a line break.
_LINE = re.compile(r"PROFILE(?:-NONE)?\tpid:(\d{1,18})\t([^\t]*)(?:\t(.*))?\Z", re.DOTALL)
_MARKS = re.compile(r"PROFILE(?:-NONE)?\tpid:")
_STAGE = re.compile(r"(prep|midp|postp)#\[(.{1,255}?)\|(\d{1,9})\]_([01]):(\d{1,16})(?!\d)")
_STEP = re.compile(r"(prepack|call|postpack)_(\d{1,18})#\S{1,255}?_([01]):(\d{1,16})(?!\d)")
_PLACES = {"prep": 0, "midp": 2, "postp": 4, "prepack": 0, "call": 2, "postpack": 4}
_LATEST_US = 2**62 // 1000
_MAX_LINE = 2**22  # characters; a batch of 10,000 requests takes half a million
_UNKNOWN = -1

Stamps = list[int]
"""Begin and end of three spans, in ns; -1: unknown."""


_Weighted = tuple[int, float, tuple[int, ...]]  # pid, weight, row


class _LineReader:
    """Collects the rows of lines."""

    def __init__(self) -> None:
        self._spans: list[_Weighted] = []
        self._requests: list[_Weighted] = []
        self._loads: list[tuple[int, int, int]] = []
        self._streams: list[tuple[int, ...]] = []
        self._names: dict[str, int] = {}
        self._old_requests: dict[tuple[int, int], Stamps] = {}
        self._old_batches = 0
        self._damaged = 0

    def profile(self) -> Profile:
        for (pid, data_id), stamps in self._old_requests.items():
            self._requests.append((pid, 1, _old_request(data_id, stamps)))
        span_pids, span_weights, spans = _table(self._spans, SPAN)
        request_pids, request_weights, requests = _table(self._requests, REQUEST)
        sample = Sample(span_weights, request_weights, np.array(self._loads, LOAD))
        names = tuple(self._names)
        pids, streams = (span_pids, request_pids), np.array(self._streams, STREAM)
        return Profile(spans, requests, names, *pids, self._damaged, sample, streams)

    def read(self, line: str) -> None:
        marks = list(_MARKS.finditer(line))
        self._damaged += max(0, len(marks) - 1)  # another process wrote into the line
        if not marks:
            return
        match = _LINE.match(line.rstrip("\r\n"), marks[-1].start())
        if match is None:
            self._damaged += 1
            return
        pid, events, data = int(match[1]), match[2], match[3]
        is_read = self._read_data(pid, data) if data else self._read_events(pid, events)
        self._damaged += not is_read

    def _read_data(self, pid: int, data: str) -> bool:
        try:
            line = _decode(data)
        except (msgspec.MsgspecError, UnicodeError):
            return False
        if isinstance(line, _BatchLine):
            op = self._index(line.op)
            weight = (line.stands_for or len(line.requests)) / max(1, len(line.requests))
            for data_id, rows, outcome, ready in line.requests:
                row = (op, line.worker, line.batch, data_id, rows, outcome, ready, *line.times)
                self._spans.append((pid, weight, row))
        elif isinstance(line, _StreamLine):
            target = PIPELINE if line.op is None else self._index(line.op)
            times = (line.begin, line.first, line.last, line.stands_for)
            self._streams.append((line.data_id, target, line.parts, *times))
        elif isinstance(line, _LoadLine):
            self._loads.append((line.begin, line.end, line.busy))
        else:
            target = PIPELINE if line.op is None else self._index(line.op)
            request = (line.data_id, target, *line.row)
            self._requests.append((pid, line.stands_for, request))
        return True

    def _index(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _read_events(self, pid: int, events: str) -> bool:
        """Read the predecessor's events; False if none is there."""
        spans: list[tuple[tuple[str, int], Stamps]] = []
        for stage, op, worker, end, text in _STAGE.findall(events):
            if stage == "prep" and end == "0":
                spans.append(((op, int(worker)), [_UNKNOWN] * 6))
            if spans and spans[-1][0] == (op, int(worker)):
                spans[-1][1][_PLACES[stage] + int(end)] = _nanoseconds(text)
        for (op, number), stamps in spans:
            self._spans.append((pid, 1, self._old_span(op, number, stamps)))
        steps = _STEP.findall(events)
        for step, data_id, end, text in steps:
            stamps = self._old_requests.setdefault((pid, int(data_id)), [_UNKNOWN] * 6)
            place = _PLACES[step] + int(end)
            if (
                end == "1" or stamps[place] == _UNKNOWN
            ):  # of retries, the first begin and the last end count
                stamps[place] = _nanoseconds(text)
        return bool(spans or steps or not events.strip())

    def _old_span(self, op: str, worker: int, stamps: Stamps) -> tuple[int, ...]:
        """Return a SPAN row. The time between two stages counts to preprocess or postprocess."""
        start, prep_end, prepared, processed, _, end = stamps
        is_whole = end != _UNKNOWN
        self._old_batches += 1
        return (
            self._index(op), worker, self._old_batches - 1, _UNKNOWN, _UNKNOWN,
            Outcome.OK if is_whole else Outcome.BACKEND,
            _UNKNOWN, start, prepared if prepared != _UNKNOWN else prep_end, processed,
            end if is_whole else max(stamps), _UNKNOWN,
        )  # fmt: skip


def _table(weighted_rows: Sequence[_Weighted], dtype: np.dtype[np.void]) -> tuple[Any, Any, Rows]:
    """Return pids, weights and rows."""
    pids, weights, rows = zip(*weighted_rows, strict=True) if weighted_rows else ((), (), ())
    return np.array(pids, np.int64), np.array(weights, np.float64), np.array(list(rows), dtype)


def _old_request(data_id: int, stamps: Stamps) -> tuple[int, ...]:
    entered, _, begun, packing, _, end = stamps
    return (
        data_id, PIPELINE, _UNKNOWN, Outcome.OK, 0,
        entered if entered != _UNKNOWN else begun, entered, begun, packing,
        end if end != _UNKNOWN else packing, _UNKNOWN, _UNKNOWN, _UNKNOWN,
    )  # fmt: skip


def _nanoseconds(microseconds: str) -> int:
    return min(int(microseconds), _LATEST_US) * 1000


_LOGGER = logging.getLogger(__name__)

_PIECE_CHARS = 4096  # a pipe takes so much at once, so lines of several processes do not mix
_PIECES_LIMIT = 64  # flushes that may wait for the reader of stderr


class ProfileWriter:
    """A Sink that writes lines to stderr, or to `stream`: `dag.use_profile`.

    The event loop chooses the rows to write. A thread formats and writes them, because the reader
    of stderr may be slow. `per_s` and `id_step` are the Sampler's; a `per_s` of 0: all requests are
    written.
    """

    def __init__(
        self, names: Sequence[str], per_s: int = 0, id_step: int = 1, stream: TextIO | None = None
    ) -> None:
        self._names = list(names)
        self._stream = stream
        self._sampler = Sampler(per_s, id_step) if per_s else None
        self._streams = OpenStreams()
        self._background = Background("profile", _PIECES_LIMIT)
        self._is_broken = False

    def start(self) -> None:
        self._background.start()

    def close(self) -> None:
        """Write the waiting rows and end the thread. May be called again."""
        if self._sampler is not None and (loads := self._sampler.end()).size:
            nothing = np.empty(0, SPAN), np.empty(0, REQUEST)
            self._submit(SampledRows(*nothing, None, loads), NO_STREAMS)
        self._background.close()

    def notify(self, spans: Rows, requests: Rows) -> None:
        if self._sampler is None:
            chosen, strides = SampledRows(spans, requests, None, NO_LOADS), None
        else:
            chosen = self._sampler.choose(spans, requests)
            strides = None if chosen.strides is None else chosen.strides.requests.tolist()
        self._submit(chosen, self._streams.take(requests, chosen.requests, strides))

    def notify_parts(self, parts: Rows) -> None:
        """Take parts of streams; they are written with their requests."""
        self._streams.note(parts)

    def _submit(self, chosen: SampledRows, streams: Rows) -> None:
        if chosen.spans.size or chosen.requests.size or chosen.loads.size:
            offset_ns = wall_offset_ns()
            self._background.submit(lambda: self._write(chosen, streams, offset_ns))

    def _write(self, chosen: SampledRows, streams: Rows, offset_ns: int) -> None:
        stream: Any = sys.stderr if self._stream is None else self._stream
        if self._is_broken or stream is None:
            return
        lines = itertools.chain(
            profile_lines(chosen.spans, chosen.requests, self._names, offset_ns, chosen.strides),
            stream_lines(streams, self._names, offset_ns),
            load_lines(chosen.loads, offset_ns),
        )
        try:
            for piece in _pieces(lines):
                write_out(stream, piece)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._is_broken = True
            _LOGGER.error("dag.use_profile: no more PROFILE lines, stderr failed: %s", error)


def open_profile(context: SinkContext, options: None) -> ProfileWriter:
    config = context.config
    writer = ProfileWriter(context.op_names, config.dag.profile_per_s, context.id_step)
    writer.start()
    context.on_close(writer.close)
    return writer


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines in pieces that are written at once."""
    piece = ""
    for line in lines:
        if piece and len(piece) + len(line) > _PIECE_CHARS:
            yield piece
            piece = ""
        piece += line
    if piece:
        yield piece
