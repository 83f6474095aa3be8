"""Figures: sums over spans and requests.

Times are times of batches: `prep`, `midp`, `postp` are the stages preprocess, process, postprocess
of a batch with all its requests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.engine.journal.journal import NO_WORKER, PIPELINE, Outcome, Rows
from pipeline.observe.analysis.chrome_trace import depth, first_known, request_times
from pipeline.observe.analysis.sampling import NO_STREAMS, Sample
from pipeline.observe.tables import batches, covered_ns, covered_until, merged

Numbers = npt.NDArray[Any]


def weighted(rows: Rows, weights: npt.NDArray[np.float64]) -> Rows:
    """Return the rows with an additional field, `weight`."""
    table = np.empty(rows.size, [*rows.dtype.descr, ("weight", np.float64)])
    for name in rows.dtype.names or ():
        table[name] = rows[name]
    table["weight"] = weights
    return table


def count(rows: Rows) -> int:
    """Return how many requests weighted rows stand for; at least one if there is a row."""
    return max(min(1, rows.size), round(float(rows["weight"].sum())))


def ratio(number: float, by: float) -> float:
    """Return `number / by`; NaN if `by` is 0."""
    return float(number / by) if by else math.nan


class Durations(NamedTuple):
    """Times in ns, and the weight of each."""

    ns: Numbers
    weights: Numbers

    @property
    def total_s(self) -> float:
        """Their sum."""
        return float((self.ns * self.weights).sum() / 1e9)

    @property
    def mean_ms(self) -> float:
        """Mean; NaN without times."""
        return ratio((self.ns * self.weights).sum(), self.weights.sum()) / 1e6

    def percentile_ms(self, percent: float) -> float:
        """Return the percentile; NaN without times."""
        return percentile(self.ns, self.weights, percent) / 1e6 if self.ns.size else math.nan


def durations(rows: Rows, first: str, last: str) -> Durations:
    """Return the time between two fields of each weighted row, if both are known."""
    known = (rows[first] > 0) & (rows[last] >= rows[first])
    return Durations(rows[last][known] - rows[first][known], rows["weight"][known])


def percentile(values: Numbers, weights: Numbers, percent: float) -> float:
    """Return the percentile of at least one value, interpolated as numpy does."""
    if (weights == weights[0]).all():
        return float(np.percentile(values, percent))
    order = np.argsort(values, kind="stable")
    weights = weights[order]
    # A value's position is the middle of its weight; with equal weights this is numpy's rule.
    places = np.cumsum(weights) - weights / 2
    place = places[0] + percent / 100 * (places[-1] - places[0])
    return float(np.interp(place, places, values[order]))


_MAX_WALKED = 20_000  # requests whose paths are followed


@dataclass(frozen=True, slots=True)
class Path:
    """The most frequent critical path: names of Ops, their cost, the waiting in between.

    `share` is its share of all requests.
    """

    ops: tuple[str, ...]
    cost_ms: float
    queue_ms: float
    share: float


def critical_path(spans: Rows, names: Sequence[str]) -> Path | None:
    """Return the most frequent critical path, from a request's last span back to the first.

    The predecessor of a span is the span that ended last before it was ready.
    """
    is_known = (spans["data_id"] >= 0) & (spans["worker"] != NO_WORKER) & (spans["ready_ns"] > 0)
    known = spans[is_known]
    ordered = known[np.lexsort((known["end_ns"], known["data_id"]))]
    ways: dict[tuple[int, ...], list[_Way]] = {}
    for path in itertools.islice(_ways(ordered), _MAX_WALKED):
        ways.setdefault(tuple(step[0] for step in path), []).append(path)
    if not ways:
        return None
    took = {ops: _weights(paths).sum() for ops, paths in ways.items()}
    ops = max(took, key=lambda ops: float(took[ops]))
    weights = _weights(ways[ops])
    costs_ns = [sum(end - start for _, _, start, end, _ in path) for path in ways[ops]]
    queues_ns = [sum(start - ready for _, ready, start, _, _ in path) for path in ways[ops]]
    return Path(
        tuple(names[op] for op in ops),
        cost_ms=Durations(np.array(costs_ns), weights).mean_ms,
        queue_ms=Durations(np.array(queues_ns), weights).mean_ms,
        share=float(took[ops] / sum(took.values())),
    )


_Step = tuple[int, int, int, int, float]  # op, ready, start, end, weight
_Way = list[_Step]


def _weights(ways: Sequence[_Way]) -> Numbers:
    return np.array([path[0][4] for path in ways])


def _ways(ordered: Rows) -> Iterator[_Way]:
    """Yield the path of each request; `ordered` is sorted by data id, then by end."""
    ids = ordered["data_id"]
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), ids.size]
    columns = [ordered[name] for name in ("op", "ready_ns", "start_ns", "end_ns", "weight")]
    for first, stop in itertools.pairwise(bounds):
        steps = list(zip(*(column[first:stop].tolist() for column in columns), strict=True))
        path: _Way = []
        for step in reversed(steps):
            if not path or step[3] <= path[-1][1]:  # ended before the next one was ready
                path.append(step)
        if path:
            yield path[::-1]


_MIN_FITTED = 10  # minimum number of batches for a line through their times
_MIN_SHARE = 1e-12  # minimum share, for its logarithm
_SMOOTHED = 50  # spans of a sample over which the waiting requests are averaged


def op_concurrency(cost_s: float, per_s: float) -> float:
    """Return the workers that an Op needs for `per_s` requests/s of `cost_s` each."""
    return cost_s * per_s


def avg_batch_cost(size: float, prep: float, midp: float, postp: float) -> float:
    """Return the cost of a request in a batch: its own `prep` and its share of the other stages."""
    return (size * prep + midp + postp) / size


@dataclass(frozen=True, slots=True)
class Line:
    """A batch of n requests takes `fixed_ms + n * each_ms`."""

    fixed_ms: float
    each_ms: float

    def cost_ms(self, size: int) -> float:
        """Return the cost of one request in a batch of `size`."""
        return self.fixed_ms / size + self.each_ms


@dataclass(frozen=True, slots=True)
class OpFigures:
    """One Op. Times are means in ms; stages are those of batches with a result.

    `requests` is the number that ran, `failed` those of them without a result; `never_ran` are not
    included. `visits` is the mean number of spans of a request here, below one if some requests
    skip the Op. `workers` is the number of workers that worked, at most the configured number.
    `busy` is their share of the time in which requests were there. `waiting` is the mean number in
    the channel, `growth_per_s` its growth while requests arrived. `line` is None if all batches
    have one size. Unknown figures are NaN.
    """

    name: str
    requests: int
    failed: int
    never_ran: int
    visits: float
    batches: int
    largest_batch: int
    workers: int
    prep_ms: float
    midp_ms: float
    postp_ms: float
    queue_ms: float
    queue_p95_ms: float
    hand_over_ms: float
    waiting: float
    most_waiting: int
    growth_per_s: float
    busy: float
    line: Line | None

    @property
    def cost_ms(self) -> float:
        return self.prep_ms + self.midp_ms + self.postp_ms

    @property
    def batch_size(self) -> float:
        """Mean number of requests in a batch."""
        return self.requests / self.batches if self.batches else math.nan

    @property
    def request_cost_ms(self) -> float:
        """Cost of one request: its share of a batch."""
        return self.cost_ms / self.batch_size

    @property
    def capacity_per_s(self) -> float:
        """Requests/s of the service that these workers can process."""
        if not self.batches or not self.visits:
            return math.inf
        each_s = self.request_cost_ms / 1e3 * self.visits
        return self.workers / each_s if each_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of answered requests in ms; NaN without such requests."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Streams of an Op, or of the answers (`name` is ""). Times in ms.

    `first` is the time until the first part, `gap_ms` the mean time between two parts.
    """

    name: str
    streams: int
    parts: int
    first: Latency
    gap_ms: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole record. `seconds` is the time in which at least one request was there.

    The figures are those of all requests; `told` of them are in the record, fewer in a sample.
    `given_up` are requests whose callers went away, `refused` are invalid requests; neither is
    among the `failed`. `inside` is the mean number of requests in the graph. `let_in_ms`,
    `unpack_ms`, `graph_ms` and `pack_ms` are the mean parts of `latency`.
    """

    seconds: float
    requests: int
    told: int
    failed: int
    given_up: int
    refused: int
    inside: float
    latency: Latency
    let_in_ms: float
    unpack_ms: float
    graph_ms: float
    pack_ms: float
    path: Path | None
    ops: tuple[OpFigures, ...]
    streams: tuple[StreamFigures, ...] = ()

    @property
    def per_s(self) -> float:
        """Requests/s that ended, also in failure; NaN for an empty record."""
        return self.requests / self.seconds if self.seconds else math.nan


def _streams_of(streams: Rows, names: Sequence[str]) -> StreamFigures:
    target, weights = int(streams["target"][0]), streams["weight"].astype(float)
    took = Durations(np.maximum(streams["first_ns"] - streams["begin_ns"], 0), weights)
    gaps = ((streams["parts"] - 1) * weights).sum()
    between_ns = ((streams["last_ns"] - streams["first_ns"]) * weights).sum()
    return StreamFigures(
        name="" if target == PIPELINE else names[target],
        streams=int(weights.sum()),
        parts=int((streams["parts"] * weights).sum()),
        first=Latency(took.mean_ms, *map(took.percentile_ms, (50, 95, 99))),
        gap_ms=ratio(between_ns, gaps) / 1e6,
    )


def figures_of(
    spans: Rows,
    requests: Rows,
    names: Sequence[str],
    sample: Sample | None = None,
    streams: Rows = NO_STREAMS,
) -> Figures:
    """Add up a record of all rows or of a `sample`.

    Without request rows, requests are counted by spans. Ops without spans are left out.
    """
    sample = sample or Sample.whole(spans, requests)
    spans, requests = weighted(spans, sample.spans), weighted(requests, sample.requests)
    whole = requests[requests["target"] <= PIPELINE]
    starts, ends = request_times(whole)
    seconds = _busy_s(spans, starts, ends, sample.loads)
    requests_count = count(whole) or _most_spans(spans)
    is_well = (starts > 0) & (ends >= starts) & (whole["outcome"] <= Outcome.OK)
    took = Durations((ends - starts)[is_well], whole["weight"][is_well])
    answered = whole[whole["outcome"] <= Outcome.OK]
    in_graph = durations(whole, "dispatched_ns", "completed_ns")
    is_given_up = whole["outcome"] == Outcome.CANCELED
    is_refused = whole["outcome"] == Outcome.PRODUCT
    return Figures(
        seconds=seconds,
        requests=requests_count,
        told=whole.size or requests_count,
        failed=count(whole[(whole["outcome"] > Outcome.OK) & ~is_given_up & ~is_refused]),
        given_up=count(whole[is_given_up]),
        refused=count(whole[is_refused]),
        inside=ratio(in_graph.total_s, seconds),
        latency=Latency(took.mean_ms, *map(took.percentile_ms, (50, 95, 99))),
        let_in_ms=durations(whole, "start_ns", "admitted_ns").mean_ms,
        unpack_ms=durations(whole, "admitted_ns", "dispatched_ns").mean_ms,
        graph_ms=in_graph.mean_ms,
        pack_ms=durations(whole, "completed_ns", "end_ns").mean_ms,
        path=critical_path(_of_requests(spans, answered) if answered.size else spans, names),
        ops=_ops(spans, whole, names, seconds),
        streams=tuple(
            _streams_of(streams[streams["target"] == target], names)
            for target in np.unique(streams["target"]).tolist()
        ),
    )


def _ops(
    spans: Rows, requests: Rows, names: Sequence[str], seconds: float
) -> tuple[OpFigures, ...]:
    of_ended = _of_requests(spans, requests)
    total = requests["weight"].sum() or _most_spans(spans)
    ops = []
    for op in np.unique(spans["op"]).tolist():
        here, ended_here = spans[spans["op"] == op], of_ended[of_ended["op"] == op]
        visits = ratio((ended_here if ended_here.size else here)["weight"].sum(), total)
        ops.append(_op_figures(names[op], here, seconds, visits))
    return tuple(ops)


def _most_spans(spans: Rows) -> int:
    """Return the minimum number of requests: the highest number of an Op."""
    return max((count(spans[spans["op"] == op]) for op in np.unique(spans["op"])), default=0)


def _of_requests(spans: Rows, requests: Rows) -> Rows:
    """Return the spans of these requests with the requests' weights."""
    own_spans = spans[np.isin(spans["data_id"], requests["data_id"])]
    order = np.argsort(requests["data_id"], kind="stable")
    places = np.searchsorted(requests["data_id"], own_spans["data_id"], sorter=order)
    own_spans["weight"] = requests["weight"][order[places]]
    return own_spans


def _op_figures(name: str, spans: Rows, seconds: float, visits: float) -> OpFigures:
    ran = spans[spans["worker"] != NO_WORKER]
    first, sizes = batches(ran)
    leaders = ran[first]  # a span of each batch
    good = np.minimum.reduceat(ran["outcome"], first) <= Outcome.OK if ran.size else first > 0
    brought = leaders[good]
    worked_ns = leaders["end_ns"] - leaders["start_ns"]
    workers = np.unique(ran["worker"]).size
    queued = durations(spans, "ready_ns", "start_ns")
    most, growth_per_s = _gathering(spans)
    return OpFigures(
        name=name,
        requests=count(ran),
        failed=count(ran[ran["outcome"] > Outcome.OK]),
        never_ran=count(spans[spans["worker"] == NO_WORKER]),
        visits=visits,
        batches=count(leaders),
        largest_batch=int(sizes.max(initial=0)),
        workers=workers,
        prep_ms=durations(brought, "start_ns", "preprocess_end_ns").mean_ms,
        midp_ms=durations(brought, "preprocess_end_ns", "process_end_ns").mean_ms,
        postp_ms=durations(brought, "process_end_ns", "end_ns").mean_ms,
        queue_ms=queued.mean_ms,
        queue_p95_ms=queued.percentile_ms(95),
        hand_over_ms=durations(ran, "end_ns", "result_received_ns").mean_ms,
        waiting=ratio(queued.total_s, seconds) if queued.ns.size else math.nan,
        most_waiting=most,
        growth_per_s=growth_per_s,
        busy=ratio(Durations(worked_ns, leaders["weight"]).total_s, seconds * workers),
        line=_line(sizes[good], worked_ns[good] / 1e6, brought["weight"]),
    )


def _gathering(spans: Rows) -> tuple[int, float]:
    """Return the maximum number in a channel, and its growth in arriving requests/s."""
    known = spans[spans["ready_ns"] > 0]
    if not known.size:
        return 0, math.nan
    most = _most_waiting(known)
    first, last = int(known["ready_ns"].min()), int(known["ready_ns"].max())
    seconds = (last - first) / 1e9
    if not seconds:
        return most, 0.0
    arrived, left = known["weight"].sum(), known["weight"][known["start_ns"] <= last].sum()
    return most, float(arrived - left) / seconds


def _most_waiting(known: Rows) -> int:
    times, counts = depth(known["ready_ns"], known["start_ns"], known["weight"])
    if (known["weight"] == 1).all() or times[0] == times[-1]:
        return round(float(counts.max()))
    # A request of a sample does not stand for many simultaneous ones: only the mean number of
    # waiting requests is known, over stretches with enough spans of the sample.
    edges = np.linspace(0, times[-1] - times[0], 1 + math.ceil(known.size / _SMOOTHED))
    waited = np.append(0, np.cumsum(counts[:-1] * np.diff(times)))
    return round(float((np.diff(np.interp(edges, times - times[0], waited)) / edges[1]).max()))


def _line(sizes: Numbers, costs_ms: Numbers, weights: Numbers) -> Line | None:
    """Fit a line through the times of batches by size; None if there are too few sizes."""
    if sizes.size < _MIN_FITTED or np.unique(sizes).size < 2:
        return None
    known = np.unique(sizes)
    # Medians, so that the warm-up counts little.
    medians = [percentile(costs_ms[sizes == size], weights[sizes == size], 50) for size in known]
    counts = [weights[sizes == size].sum() for size in known]
    fit = np.polynomial.polynomial.polyfit(known, medians, 1, w=np.sqrt(counts))
    fixed_ms, each_ms = fit.tolist()
    if each_ms <= 0:  # larger batches are not slower
        return Line(percentile(costs_ms, weights, 50), 0.0)
    if fixed_ms <= 0:
        return Line(0.0, float((costs_ms * weights).sum() / (sizes * weights).sum()))
    return Line(fixed_ms, each_ms)


# Times ------------------------------------------------------------------------------------------


def _busy_s(spans: Rows, starts: Numbers, ends: Numbers, loads: Rows) -> float:
    """Return how long requests were there: in the record, left out of it, or not ended yet."""
    ran = spans[spans["worker"] != NO_WORKER]
    starts = np.concatenate([starts, first_known(ran["ready_ns"], ran["start_ns"])])
    ends = np.concatenate([ends, ran["end_ns"]])
    known = (starts > 0) & (ends >= starts)
    starts, ends = merged(starts[known], ends[known])
    return (covered_ns(starts, ends) + _untold_ns(starts, ends, loads)) / 1e9


def _untold_ns(starts: Numbers, ends: Numbers, loads: Rows) -> float:
    """Return how long requests were there that the record leaves out."""
    loads = loads[(loads["begin_ns"] < loads["end_ns"]) & (loads["busy_ns"] > 0)]
    if not loads.size:
        return 0.0
    edges = np.unique([loads["begin_ns"], loads["end_ns"]])
    told_until = covered_until(edges, starts, ends)
    first, last = (np.searchsorted(edges, loads[name]) for name in ("begin_ns", "end_ns"))
    told_ns = told_until[last] - told_until[first]
    free_ns = loads["end_ns"] - loads["begin_ns"] - told_ns
    share = np.clip((loads["busy_ns"] - told_ns) / np.maximum(free_ns, 1.0), 0.0, 1.0)
    # Idle means that all replicas are idle; their busy times overlap at random.
    nobody = np.log(np.maximum(1.0 - share, _MIN_SHARE))
    change = np.bincount(first, nobody, edges.size) - np.bincount(last, nobody, edges.size)
    untold_ns = np.diff(edges) - np.diff(told_until)
    return float((untold_ns * (1.0 - np.exp(np.cumsum(change)[:-1]))).sum())
