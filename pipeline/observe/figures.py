"""What turns and requests add up to: the figures of the design document's chapter 6.4.

Times are those of batches: `prep`, `midp`, `postp` are the stages preprocess, process, postprocess
of one batch, with all the requests in it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.observe.chrome_trace import depth, first_known, split_batches
from pipeline.observe.span import NO_WORKER, PIPELINE, Outcome, Rows

_MOST_WALKED = 20_000  # requests whose way through the graph is looked at
_FEWEST_FITTED = 10  # batches, for a line through their times

Numbers = npt.NDArray[Any]


def op_cost(prep: float, midp: float, postp: float) -> float:
    """What an Op takes for a batch, in the unit of the stages."""
    return prep + midp + postp


def op_concurrency(cost_s: float, per_s: float) -> float:
    """Workers that an Op needs for `per_s` requests/s, each of which takes it `cost_s`."""
    return cost_s * per_s


def service_throughput(slowest_cost_s: float, concurrency: float) -> float:
    """Requests/s that the slowest Op lets through."""
    return concurrency / slowest_cost_s if slowest_cost_s > 0 else math.inf


def service_avg_cost(costs: Sequence[float]) -> float:
    """What a request takes without any waiting: the sum over the Ops of its critical path."""
    return sum(costs)


def channel_acc_size(arrivals_per_s: float, departures_per_s: float, seconds: float) -> float:
    """Requests that gather in a channel; less than none: it drains."""
    return (arrivals_per_s - departures_per_s) * seconds


def avg_batch_cost(size: float, prep: float, midp: float, postp: float) -> float:
    """What one request of a batch takes, where only `prep` is its own, the others the batch's."""
    return (size * prep + midp + postp) / size


@dataclass(frozen=True, slots=True)
class Line:
    """A batch of n requests takes `fixed_ms + n * each_ms`."""

    fixed_ms: float
    each_ms: float

    def cost_ms(self, size: int) -> float:
        """Of one request in a batch of `size`."""
        return self.fixed_ms / size + self.each_ms


@dataclass(frozen=True, slots=True)
class OpFigures:
    """One Op. Times are means in ms; stages are those of batches that brought a result.

    `requests` ran, `failed` of them had no result; `never_ran` are beside them. `visits` is how
    many turns a request takes here, fewer than one where some do not come by. `workers` are those
    that worked: no more than are configured. `busy` is their share of the time that there was
    anything to do. `waiting` is the mean number in the channel, `growth_per_s` by how many it grew
    while requests arrived. `line` is None while all batches have one size. Not known: NaN.
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
        """Of a batch."""
        return op_cost(self.prep_ms, self.midp_ms, self.postp_ms)

    @property
    def batch_size(self) -> float:
        """Mean number of requests in a batch."""
        return self.requests / self.batches if self.batches else math.nan

    @property
    def request_cost_ms(self) -> float:
        """Of one request: its share of a batch."""
        return self.cost_ms / self.batch_size

    @property
    def capacity_per_s(self) -> float:
        """Requests of the service that these workers can keep up with."""
        if not self.batches or not self.visits:
            return math.inf
        return service_throughput(self.request_cost_ms / 1e3 * self.visits, self.workers)


@dataclass(frozen=True, slots=True)
class Path:
    """The way on which most requests were slowest: Ops by name, their cost, the waiting in between.

    `share` of all requests took it.
    """

    ops: tuple[str, ...]
    cost_ms: float
    queue_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of requests that were answered, in ms; NaN if there are none."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole record. `seconds` is the time in which at least one request was there.

    Beside those that `failed` are `given_up` ones, whose callers went away. `inside` is the mean
    number of requests in the graph. `let_in_ms`, `unpack_ms`, `graph_ms` and
    `pack_ms` are the mean parts of `latency`.
    """

    seconds: float
    requests: int
    failed: int
    given_up: int
    inside: float
    latency: Latency
    let_in_ms: float
    unpack_ms: float
    graph_ms: float
    pack_ms: float
    path: Path | None
    ops: tuple[OpFigures, ...]

    @property
    def per_s(self) -> float:
        """Requests that ended, well or not, each second; NaN for an empty record."""
        return self.requests / self.seconds if self.seconds else math.nan


def figures_of(turns: Rows, requests: Rows, names: Sequence[str]) -> Figures:
    """Add up a record.

    Args:
        turns: rows of TURN, those of a batch neighbours; times that are not known are -1.
        requests: rows of REQUEST; without any, requests are counted by their turns.
        names: of the Ops, by the index that is in `turns`. Ops without turns are left out.
    """
    whole = requests[requests["target"] <= PIPELINE]
    starts = first_known(whole["start_ns"], whole["entered_ns"], whole["begun_ns"])
    ends = first_known(whole["end_ns"], whole["packing_ns"])
    seconds = _covered_s(*_busy_times(turns, starts, ends))
    count = whole.size or _most_turns(turns)
    took_ns = (ends - starts)[(starts > 0) & (ends >= starts) & (whole["outcome"] <= Outcome.OK)]
    given_up = int((whole["outcome"] == Outcome.CANCELED).sum())
    inside_ns = _between(whole, "begun_ns", "packing_ns")
    return Figures(
        seconds=seconds,
        requests=count,
        failed=int((whole["outcome"] > Outcome.OK).sum()) - given_up,
        given_up=given_up,
        inside=_over(inside_ns.sum() / 1e9, seconds),
        latency=Latency(_mean_ms(took_ns), *(_percentile_ms(took_ns, p) for p in (50, 95, 99))),
        let_in_ms=_mean_ms(_between(whole, "start_ns", "entered_ns")),
        unpack_ms=_mean_ms(_between(whole, "entered_ns", "begun_ns")),
        graph_ms=_mean_ms(inside_ns),
        pack_ms=_mean_ms(_between(whole, "packing_ns", "end_ns")),
        path=_critical_path(_of_answered(turns, whole), names),
        ops=tuple(
            _op_figures(
                names[op], turns[turns["op"] == op], seconds, _visits(turns, op, whole, count)
            )
            for op in np.unique(turns["op"]).tolist()
        ),
    )


def _most_turns(turns: Rows) -> int:
    """Of any Op: how many requests there were at least."""
    return int(np.unique(turns["op"], return_counts=True)[1].max(initial=0))


def _visits(turns: Rows, op: int, requests: Rows, count: int) -> float:
    """Turns of a request at `op`; of requests that ended, where the turns tell whose they are."""
    here = turns[turns["op"] == op]
    of_ended = here[np.isin(here["data_id"], requests["data_id"])]
    return _over(of_ended.size or here.size, count)


def _of_answered(turns: Rows, requests: Rows) -> Rows:
    """The turns of requests that were answered well; all, if those are not told."""
    answered = requests["data_id"][requests["outcome"] <= Outcome.OK]
    return turns[np.isin(turns["data_id"], answered)] if answered.size else turns


def _op_figures(name: str, turns: Rows, seconds: float, visits: float) -> OpFigures:
    ran = turns[turns["worker"] != NO_WORKER]
    bounds = np.array(split_batches(ran), int).reshape(-1, 2)
    first, sizes = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    batches = ran[first]
    worked_ns = batches["end_ns"] - batches["start_ns"]
    good = np.minimum.reduceat(ran["outcome"], first) <= Outcome.OK if ran.size else first > 0
    workers = np.unique(ran["worker"]).size
    queue_ns = _between(turns, "ready_ns", "start_ns")
    most, growth_per_s = _gathering(turns)
    return OpFigures(
        name=name,
        requests=ran.size,
        failed=int((ran["outcome"] > Outcome.OK).sum()),
        never_ran=turns.size - ran.size,
        visits=visits,
        batches=len(bounds),
        largest_batch=int(sizes.max(initial=0)),
        workers=workers,
        prep_ms=_mean_ms(_between(batches[good], "start_ns", "prepared_ns")),
        midp_ms=_mean_ms(_between(batches[good], "prepared_ns", "processed_ns")),
        postp_ms=_mean_ms(_between(batches[good], "processed_ns", "end_ns")),
        queue_ms=_mean_ms(queue_ns),
        queue_p95_ms=_percentile_ms(queue_ns, 95),
        hand_over_ms=_mean_ms(_between(ran, "end_ns", "taken_ns")),
        waiting=_over(queue_ns.sum() / 1e9, seconds) if queue_ns.size else math.nan,
        most_waiting=most,
        growth_per_s=growth_per_s,
        busy=_over(worked_ns.sum() / 1e9, seconds * workers),
        line=_line(sizes[good], worked_ns[good] / 1e6),
    )


def _gathering(turns: Rows) -> tuple[int, float]:
    """Of a channel: the most that waited, and growth in requests/s while requests arrived."""
    known = turns[turns["ready_ns"] > 0]
    if not known.size:
        return 0, math.nan
    _, counts = depth(known["ready_ns"], known["start_ns"])
    first, last = int(known["ready_ns"].min()), int(known["ready_ns"].max())
    seconds = (last - first) / 1e9
    if not seconds:
        return int(counts.max()), 0.0
    left = int((known["start_ns"] <= last).sum())
    return int(counts.max()), channel_acc_size(known.size / seconds, left / seconds, 1.0)


def _line(sizes: Numbers, costs_ms: Numbers) -> Line | None:
    """Through the times of batches by their size; None if that cannot be told."""
    if sizes.size < _FEWEST_FITTED or np.unique(sizes).size < 2:
        return None
    known, counts = np.unique(sizes, return_counts=True)
    medians = [np.median(costs_ms[sizes == size]) for size in known]  # a warm-up counts for little
    fit = np.polynomial.polynomial.polyfit(known, medians, 1, w=np.sqrt(counts))
    fixed_ms, each_ms = fit.tolist()
    if each_ms <= 0:  # larger batches do not take longer
        return Line(float(np.median(costs_ms)), 0.0)
    if fixed_ms <= 0:
        return Line(0.0, float(costs_ms.sum() / sizes.sum()))
    return Line(fixed_ms, each_ms)


# The critical path ------------------------------------------------------------------------------


def _critical_path(turns: Rows, names: Sequence[str]) -> Path | None:
    """What most requests waited for, from their last turn back to the first.

    The turn before another one on that way is the one that ended last before that was ready.
    """
    known = turns[
        (turns["data_id"] >= 0) & (turns["worker"] != NO_WORKER) & (turns["ready_ns"] > 0)
    ]
    ways: dict[tuple[int, ...], list[_Way]] = {}
    for way in itertools.islice(
        _ways(known[np.lexsort((known["end_ns"], known["data_id"]))]), _MOST_WALKED
    ):
        ways.setdefault(tuple(step[0] for step in way), []).append(way)
    if not ways:
        return None
    ops = max(ways, key=lambda ops: len(ways[ops]))
    walked = sum(map(len, ways.values()))
    costs_ns = [service_avg_cost([end - start for _, _, start, end in way]) for way in ways[ops]]
    queues_ns = [sum(start - ready for _, ready, start, _ in way) for way in ways[ops]]
    return Path(
        tuple(names[op] for op in ops),
        cost_ms=statistics.fmean(costs_ns) / 1e6,
        queue_ms=statistics.fmean(queues_ns) / 1e6,
        share=len(ways[ops]) / walked,
    )


_Step = tuple[int, int, int, int]  # op, ready, start, end
_Way = list[_Step]


def _ways(ordered: Rows) -> Iterator[_Way]:
    """The way of each request; `ordered` is by data id, then by end."""
    ids = ordered["data_id"]
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), ids.size]
    columns = [ordered[name] for name in ("op", "ready_ns", "start_ns", "end_ns")]
    for first, stop in itertools.pairwise(bounds):
        steps = list(zip(*(column[first:stop].tolist() for column in columns), strict=True))
        way: _Way = []
        for step in reversed(steps):
            if not way or step[3] <= way[-1][1]:  # ended before the next one was ready
                way.append(step)
        if way:
            yield way[::-1]


# Times ------------------------------------------------------------------------------------------


def _busy_times(turns: Rows, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """From when to when there was a request, or a turn of one that has not ended."""
    ran = turns[turns["worker"] != NO_WORKER]
    starts = np.concatenate([starts, first_known(ran["ready_ns"], ran["start_ns"])])
    ends = np.concatenate([ends, ran["end_ns"]])
    known = (starts > 0) & (ends >= starts)
    return starts[known], ends[known]


def _covered_s(starts: Numbers, ends: Numbers) -> float:
    """How long at least one of the intervals lasts."""
    if not starts.size:
        return 0.0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps_ns = np.maximum(starts[1:] - ends[:-1], 0).sum()
    return float(ends[-1] - starts[0] - gaps_ns) / 1e9


def _between(rows: Rows, first: str, last: str) -> Numbers:
    """Of each row of which both times are known."""
    known = (rows[first] > 0) & (rows[last] >= rows[first])
    found: Numbers = rows[last][known] - rows[first][known]
    return found


def _over(number: float, by: float) -> float:
    return float(number / by) if by else math.nan


def _mean_ms(times_ns: Numbers) -> float:
    return float(times_ns.mean() / 1e6) if times_ns.size else math.nan


def _percentile_ms(times_ns: Numbers, percent: float) -> float:
    return float(np.percentile(times_ns, percent) / 1e6) if times_ns.size else math.nan
