"""Spans and requests as Chrome trace events, which chrome://tracing and ui.perfetto.dev draw.

The format is the "Trace Event Format": the requests are a process, each Op is a process, and each
worker is a thread. Slices ("B" to "E") are batches and their stages; in a request's row they are
the Ops of one trip. Arrows ("s", "t", "f") follow a request through the Ops. Counters ("C") show
the requests that wait in each channel.

Slices are not "X" with a duration: Perfetto drops slices that overlap, as rounded sums do. Each
"E" has its slice's name, because the performance panel of Chrome's tools stops at one without. The
order of simultaneous events counts, so arrows directly follow the "B" of their slice.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pipeline.engine.journal.journal import NO_WORKER, Outcome, Rows
from pipeline.observe.tables import batches, columns, walks

Event = dict[str, Any]

_REPLICA_IDS = 2**40  # data ids of one replica; JavaScript's numbers suffice for 8191 replicas
_LANE_STEP = 100_000  # more than an Op's workers; further lanes of a worker have numbers above it
_AT_ONCE = 1000  # events that are converted to JSON at once
_MAX_IDS = 64  # data ids that one slice lists
_STAGES = (
    ("preprocess", "start_ns", "preprocess_end_ns"),
    ("process", "preprocess_end_ns", "process_end_ns"),
    ("postprocess", "process_end_ns", "end_ns"),
)
_Part = tuple[str, int, int]
"""A slice inside another one: its name, begin and end, in ns."""

_PARTS = (
    ("wait", "start_ns", "admitted_ns"),
    ("unpack", "admitted_ns", "dispatched_ns"),
    ("graph", "dispatched_ns", "completed_ns"),
    ("pack", "completed_ns", "end_ns"),
)


def events(
    spans: Rows,
    requests: Rows,
    names: Sequence[str],
    replica: int | None = None,
    zero_ns: int = 0,
) -> list[Event]:
    """Return the trace events of a record; `trace_json` makes a file of them.

    For one trace of several replicas, concatenate their lists, each made with its `replica`. A span
    takes some 50 us: call this off the event loop for more than a few thousand spans.

    Spans of a batch are neighbours; unknown times are -1. Requests may be missing. `zero_ns` is
    time 0 of the trace, see `first_time_ns`; `ts` are microseconds.
    """
    return _Tracer(names, replica, zero_ns).events(spans, requests)


def first_time_ns(spans: Rows, requests: Rows) -> int:
    """Return the earliest known time, or 0. Doubles hold times relative to it exactly."""
    columns = [spans["ready_ns"], spans["start_ns"], requests["start_ns"], requests["admitted_ns"]]
    times = np.concatenate(columns)
    return int(times[times > 0].min()) if (times > 0).any() else 0


def trace_json(events: Sequence[Event]) -> bytes:
    """Return the file for the viewers: a JSON list with one event per line."""
    # In chunks: each piece keeps the 4 KB that orjson allocates first, even if it is short.
    starts = range(0, len(events), _AT_ONCE)
    pieces = (b",\n".join(map(orjson.dumps, events[at : at + _AT_ONCE])) for at in starts)
    return b"[" + b",\n".join(pieces) + b"]\n"


class _Tracer:
    """Makes the events of one replica; its processes are the requests, then the Ops."""

    def __init__(self, names: Sequence[str], replica: int | None, zero_ns: int) -> None:
        self._names = names
        self._first_pid = 1 + (replica or 0) * (len(names) + 1)
        self._first_id = (replica or 0) * _REPLICA_IDS
        self._prefix = "" if replica is None else f"copy {replica}: "
        self._zero_ns = zero_ns
        self._slices: list[Event] = []
        self._ways: dict[int, list[Event]] = {}  # by data id: the points of its arrows
        self._walks: dict[tuple[int, int], list[str]] = {}
        self._walks_of: dict[int, list[_Part]] = {}  # by data id

    def events(self, spans: Rows, requests: Rows) -> list[Event]:
        has_times = (spans["start_ns"] > 0) & (spans["end_ns"] >= spans["start_ns"])
        ran = spans[(spans["worker"] != NO_WORKER) & has_times]
        self._find_walks(ran)
        self._add_requests(requests)
        for bounds in _by_worker(ran, split_batches(ran)):
            self._add_worker(ran, bounds)
        for data_id, points in self._ways.items():
            self._join(data_id, points)
        return [
            *self._process_names(spans, requests),
            *filter(None, self._slices),
            *self._never_ran(spans[spans["worker"] == NO_WORKER]),
            *self._depths(spans, requests),
        ]

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._zero_ns) / 1e3

    def _pid(self, op: int) -> int:
        return self._first_pid + 1 + op

    def _process_names(self, spans: Rows, requests: Rows) -> Iterator[Event]:
        named = [(self._first_pid, "requests")] if requests.size else []
        named += [
            (self._pid(op), f"Op {self._names[op]}") for op in np.unique(spans["op"]).tolist()
        ]
        for pid, name in named:
            yield _meta("process_name", pid, 0, name=self._prefix + name)
            yield _meta("process_sort_index", pid, 0, sort_index=pid)

    def _find_walks(self, ran: Rows) -> None:
        for walk, ops in walks(ran).items():
            self._walks[walk] = [self._names[op] for op in ops]
        if not self._walks:
            return
        times: dict[tuple[int, int], list[int]] = {}
        names = ("data_id", "result_received_ns", "start_ns", "end_ns")
        for data_id, received_ns, start_ns, end_ns in columns(ran, *names).T.tolist():
            times.setdefault((data_id, received_ns), []).extend((start_ns, end_ns))
        for walk, together in self._walks.items():
            name = f"in one trip: {', '.join(together)}"
            part = (name, min(times[walk]), max(times[walk]))
            self._walks_of.setdefault(walk[0], []).append(part)

    # Slices -----------------------------------------------------------------------------------

    def _add_requests(self, requests: Rows) -> None:
        """Draw each request in the first free lane, since requests overlap."""
        starts, ends = request_times(requests)
        known = np.flatnonzero((starts > 0) & (ends >= starts))
        known = known[np.argsort(starts[known], kind="stable")]
        starts, ends = starts[known], ends[known]
        lanes = _lanes(starts.tolist(), ends.tolist())
        self._slices += [
            _meta("thread_name", self._first_pid, 1 + lane, name=f"lane {lane + 1}")
            for lane in range(max(lanes, default=-1) + 1)
        ]
        times = zip(starts.tolist(), ends.tolist(), strict=True)
        for number, lane, (start, end) in zip(known.tolist(), lanes, times, strict=True):
            place = {"pid": self._first_pid, "tid": 1 + lane}
            self._add_request(_plain(requests[number]), place, start, end)

    def _add_request(self, row: dict[str, int], place: Event, start_ns: int, end_ns: int) -> None:
        name = f"request {row['data_id']}"
        ending = _ending(row["outcome"], err_no=row["code"])
        self._begin(place, name, start_ns, ending)
        self._add_parts(place, row, _PARTS, (start_ns, end_ns), ("graph", "pack"))
        self._end(place, name, end_ns)

    def _add_worker(self, ran: Rows, bounds: Sequence[tuple[int, int]]) -> None:
        """Draw the batches of one worker; `bounds` are in the order of their starts."""
        first = [number for number, _ in bounds]
        lanes = _lanes(ran["start_ns"][first].tolist(), ran["end_ns"][first].tolist())
        pid, worker = self._pid(int(ran["op"][first[0]])), int(ran["worker"][first[0]])
        for lane in range(max(lanes) + 1):
            name = f"worker {worker}" + f" ({lane + 1})" * bool(lane)
            self._slices.append(_meta("thread_name", pid, _tid(worker, lane), name=name))
        for (start, stop), lane in zip(bounds, lanes, strict=True):
            self._add_batch(ran[start:stop], {"pid": pid, "tid": _tid(worker, lane)})

    def _add_batch(self, batch: Rows, place: Event) -> None:
        row, ids = _plain(batch[0]), batch["data_id"].tolist()
        waits = (batch["start_ns"] - batch["ready_ns"])[batch["ready_ns"] > 0]
        known = {"batch": row["batch"], "rows": int(batch["rows"].sum())}
        name = f"batch of {len(ids)}" if max(ids) >= 0 else "batch"
        about: Event = {"requests": ids[:_MAX_IDS]} if max(ids) >= 0 else {}
        about |= {name: value for name, value in known.items() if value >= 0}
        if waits.size:
            about["longest_wait_us"] = int(waits.max()) / 1e3
        if together := self._walks.get((row["data_id"], row["result_received_ns"])):
            about["in_one_go"] = together
        outcome = int(batch["outcome"].max())  # a failed request colours the batch
        self._begin(place, name, row["start_ns"], _ending(outcome, **about))
        for data_id in ids:
            self._add_point(place, data_id, row["start_ns"])
        self._add_parts(place, row, _STAGES, (row["start_ns"], row["end_ns"]))
        self._end(place, name, row["end_ns"])

    def _add_parts(
        self,
        place: Event,
        row: dict[str, int],
        parts: Iterable[tuple[str, str, str]],
        within: tuple[int, int],
        points: Sequence[str] = (),
    ) -> None:
        """Add the slices with known times inside a slice, and points of arrows."""
        reached = max(1, within[0])
        for name, start, end in parts:
            if reached <= row[start] <= row[end] <= within[1]:
                self._begin(place, name, row[start])
                if name in points:
                    self._add_point(place, row["data_id"], row[start])
                if name == "graph":
                    self._add_walks(place, row["data_id"], (row[start], row[end]))
                self._end(place, name, row[end])
                reached = row[end]

    def _add_walks(self, place: Event, data_id: int, within: tuple[int, int]) -> None:
        """Add a request's trips that do not overlap; trips of parallel branches may."""
        reached = within[0]
        for name, start, end in sorted(self._walks_of.get(data_id, ()), key=lambda part: part[1]):
            if reached <= start <= end <= within[1]:
                self._begin(place, name, start)
                self._end(place, name, end)
                reached = end

    def _add_point(self, place: Event, data_id: int, time_ns: int) -> None:
        """Add a point of a request's arrow; `_join` draws the arrow."""
        if data_id >= 0:
            point = {**place, "ts": self._us(time_ns)}
            self._slices.append(point)
            self._ways.setdefault(data_id, []).append(point)

    def _begin(self, place: Event, name: str, time_ns: int, more: Event | None = None) -> None:
        event = {"ph": "B", "name": name, **place, "ts": self._us(time_ns)}
        self._slices.append(event | (more or {}))

    def _end(self, place: Event, name: str, time_ns: int) -> None:
        self._slices.append({"ph": "E", "name": name, **place, "ts": self._us(time_ns)})

    def _join(self, data_id: int, points: list[Event]) -> None:
        """Make arrows of a request's points: from its row to its batches in turn, and back."""
        points.sort(key=lambda point: float(point["ts"]))
        if len({(point["pid"], point["tid"]) for point in points}) < 2:
            for point in points:
                point.clear()
            return
        ways = ["s", *["t"] * (len(points) - 2), "f"]
        for point, route in zip(points, ways, strict=True):
            about = {"name": "request", "cat": "request", "id": self._first_id + data_id}
            point |= {"ph": route, **about}
            if route != "s":
                point["bp"] = "e"  # binds to the enclosing slice, not to the next one

    def _never_ran(self, spans: Rows) -> Iterator[Event]:
        mark = {"ph": "i", "s": "p", "tid": 0}  # across the Op's rows
        for row in map(_plain, spans[spans["end_ns"] > 0]):
            name = f"request {row['data_id']} never ran"
            place = {"pid": self._pid(row["op"]), "ts": self._us(row["end_ns"])}
            yield {**mark, "name": name, **place, **_ending(row["outcome"])}

    def _depths(self, spans: Rows, requests: Rows) -> Iterator[Event]:
        for op in np.unique(spans["op"]).tolist():
            waited = spans[(spans["op"] == op) & (spans["ready_ns"] > 0)]
            times, depths = depth(waited["ready_ns"], waited["start_ns"])
            yield from self._counter(self._pid(op), "channel", "waiting", times, depths)
        whole = requests[(requests["admitted_ns"] > 0) & (requests["end_ns"] > 0)]
        times, depths = depth(whole["admitted_ns"], whole["end_ns"])
        yield from self._counter(self._first_pid, "requests", "inside", times, depths)

    def _counter(self, pid: int, name: str, what: str, times: Any, counts: Any) -> Iterator[Event]:
        common = {"ph": "C", "name": name, "pid": pid, "tid": 0}
        for time_ns, count in zip(times.tolist(), counts.tolist(), strict=True):
            yield {**common, "ts": self._us(time_ns), "args": {what: count}}


def split_batches(ran: Rows) -> list[tuple[int, int]]:
    """Return `(first, stop)` of each batch's rows; a row of an unknown batch is a batch."""
    first, _ = batches(ran)
    return list(itertools.pairwise([*first.tolist(), ran.size]))


def depth(
    arrivals: npt.NDArray[np.int64],
    departures: npt.NDArray[np.int64],
    weights: npt.NDArray[Any] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return how many intervals are open from each time on: (times, counts); times are distinct.

    `weights` are how many each interval stands for.
    """
    if weights is None:
        weights = np.ones(arrivals.size, np.int64)
    times = np.concatenate([arrivals, departures])
    steps = np.concatenate([weights, -weights])
    order = np.argsort(times, kind="stable")
    times, counts = times[order], np.cumsum(steps[order])
    last = np.append(times[1:] != times[:-1], True)[: times.size]
    return times[last], counts[last]


def _by_worker(ran: Rows, bounds: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the batches of each worker of each Op, in the order of their starts."""
    jobs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for first, stop in bounds:
        key = (int(ran["op"][first]), int(ran["worker"][first]))
        jobs.setdefault(key, []).append((first, stop))
    for key in sorted(jobs):
        yield sorted(jobs[key], key=lambda batch: int(ran["start_ns"][batch[0]]))


def _lanes(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the first free lane for each interval; intervals are in the order of their starts.

    Slices in one row of a trace must not overlap.
    """
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # (end, lane)
    lanes = []
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, lane))
        lanes.append(lane)
    return lanes


def _tid(worker: int, lane: int) -> int:
    return 1 + worker + lane * _LANE_STEP


def _plain(row: Any) -> dict[str, int]:
    return dict(zip(row.dtype.names, row.item(), strict=True))


def first_known(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first known time of each row; -1 if none is known."""
    values = np.full(columns[0].shape, -1, np.int64)
    for column in reversed(columns):
        values = np.where(column > 0, column, values)
    return values


def request_times(rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the known begin and end of each request."""
    starts = first_known(rows["start_ns"], rows["admitted_ns"], rows["dispatched_ns"])
    return starts, first_known(rows["end_ns"], rows["completed_ns"])


def _ending(outcome: int, **about: Any) -> Event:
    if outcome <= Outcome.OK:  # -1: unknown
        return {"args": about}
    colour = "bad" if outcome == Outcome.PRODUCT else "terrible"  # yellow, red
    return {"args": {"outcome": Outcome(outcome).name, **about}, "cname": colour}


def _meta(kind: str, pid: int, tid: int, **about: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": about}
