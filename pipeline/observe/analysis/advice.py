"""Advice on config.yml for a higher throughput: pure functions of a service's figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.observe.analysis.figures import (
    Figures,
    Line,
    OpFigures,
    avg_batch_cost,
    op_concurrency,
)

_FULL = 0.7  # share of busy time from which an Op limits the service
_IDLE = 0.2  # share of busy time below which fewer workers are enough
_ONE_STEP = 4.0  # maximum factor of throughput for one round of advice: then measure again
_MAX_WORKERS = 256
_MAX_NEEDED = 1e9  # limit for a number of workers
_MAX_BATCH = 32
_WORTH_IT = 1.2  # minimum factor of throughput for a larger batch
_MODEL_SHARE = 0.5  # minimum share of process() in an Op's time, for batches to be worth a try
_TRIED_WORKERS = 2.0  # factor of workers, while the effect of batches is unknown
_HAND_OVER_SHARE = 0.25
_WAIT_SHARE = 0.3
_FEW = 100
_TRUSTED = 0.98  # of a measured time
_GROWTH_SHARE = 0.1  # of the arriving requests


@dataclass(frozen=True, slots=True)
class OpAdvice:
    """The advised settings of one Op; None: unchanged. `why` are whole sentences."""

    op: str
    concurrency: int | None
    batch_size: int | None
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """The changes for a throughput of `target_per_s`.

    `bottleneck` is the Op with the lowest throughput, None if no Op ran. It `is_full` if its
    workers are almost always busy. `expected_per_s` is the expected throughput with all advice of
    `ops`, if clients send enough; NaN if unknown.
    """

    target_per_s: float
    bottleneck: str | None
    is_full: bool
    expected_per_s: float
    ops: tuple[OpAdvice, ...]
    notes: tuple[str, ...]

    def as_config(self) -> dict[str, dict[str, int]]:
        """Return the settings for `op:` of config.yml."""
        keys = ("concurrency", "batch_size")
        return {
            op.op: {key: value for key in keys if (value := getattr(op, key)) is not None}
            for op in self.ops
        }


def advise(figures: Figures, target_per_s: float | None = None) -> Advice:
    """Return advice from the figures of a record under load.

    `target_per_s` is the required throughput; None: the throughput that the record's clients would
    reach if no Op made them wait, at most four times the measured one: then measure again.
    """
    # The cost of an Op without results is unknown.
    ran = [op for op in figures.ops if op.batches and op.cost_ms > 0]
    if not ran or not figures.seconds:
        return Advice(math.nan, None, False, math.nan, (), ("no Op has run",))
    slowest = min(ran, key=lambda op: op.capacity_per_s)
    # It is busy, or more requests wait than its workers take at once.
    is_full = slowest.busy >= _FULL or slowest.waiting > slowest.workers * slowest.largest_batch
    target = target_per_s if target_per_s is not None else _reachable(figures)
    all_advice = []
    if is_full or target_per_s is not None:
        all_advice = [advice for op in ran if (advice := _advise_op(op, target)) is not None]
    notes = _notes(figures, ran)
    if all_advice:
        notes.append(
            "workers that compute need a core each; threads run Python code one at a time: "
            "`workers: process` gives each a process"
        )
    followed = {advice.op: advice for advice in all_advice}
    # The throughput of the slowest Op with the advice.
    capacity = min(_capacity(op, followed.get(op.name)) for op in ran)
    expected = min(target, capacity) if all_advice else math.nan
    return Advice(target, slowest.name, is_full, expected, tuple(all_advice), tuple(notes))


def _reachable(figures: Figures) -> float:
    """Return the reachable throughput: by Little's law, if no request waits."""
    most = figures.per_s * _ONE_STEP
    if figures.path is None or not figures.path.cost_ms or not figures.inside:
        return most
    return min(most, figures.inside / figures.path.cost_ms * 1e3)


def _advise_op(op: OpFigures, target_per_s: float) -> OpAdvice | None:
    if op.capacity_per_s >= target_per_s:
        return _fewer(op, target_per_s)
    batch_size, cost_ms, why = _batch(op)
    needed = op_concurrency(cost_ms / 1e3, target_per_s * op.visits)
    concurrency = max(op.workers, min(_MAX_WORKERS, _whole(needed)))
    is_tried = batch_size is not None and op.line is None
    if concurrency > op.workers:
        why.append(
            f"{cost_ms:,.3g} ms for a request, {target_per_s * op.visits:,.0f} of them a second: "
            f"{needed:,.1f} workers, {op.workers} seen"
        )
    if is_tried and concurrency > (most := _whole(op.workers * _TRIED_WORKERS)):
        concurrency = most
        why.append("measure what batches bring before there are more workers than twice as many")
    if op.prep_ms > op.midp_ms and op.prep_ms > op.postp_ms:
        why.append("most of it is preprocess: a quicker one would do as well")
    changed = concurrency if concurrency > op.workers else None
    if changed is None and batch_size is None:
        return None
    return OpAdvice(op.name, changed, batch_size, tuple(why))


def _batch(op: OpFigures) -> tuple[int | None, float, list[str]]:
    """Return (batch_size to set, cost of a request in ms with it, why)."""
    size = _batch_size(op)
    if op.line is not None:
        return _fitted(op, op.line, size)
    is_model = op.midp_ms >= _MODEL_SHARE * op.cost_ms
    if size <= op.largest_batch or not is_model or op.largest_batch > 1:
        return None, op.request_cost_ms, []
    best_ms = avg_batch_cost(size, op.prep_ms, op.midp_ms, op.postp_ms)
    text = (
        f"most of it is process, for one request at a time, while {op.waiting:.3g} wait: if it "
        f"takes {size} as quickly as one, a request costs {best_ms:.3g} ms instead of "
        f"{op.request_cost_ms:.3g}"
    )
    return size, op.request_cost_ms, [text]


def _fitted(op: OpFigures, line: Line, size: int) -> tuple[int | None, float, list[str]]:
    """Advise on batches whose times are known for several sizes."""
    at_most = max(size, op.largest_batch)
    cost_ms = line.cost_ms(at_most)
    measured = f"a batch of n takes {line.fixed_ms:.3g} ms + n x {line.each_ms:.3g} ms"
    if at_most > op.largest_batch and op.request_cost_ms / cost_ms >= _WORTH_IT:
        return at_most, cost_ms, [f"{measured}: {at_most} together are cheaper"]
    if line.cost_ms(1) / line.cost_ms(op.largest_batch) < _WORTH_IT:
        return None, op.request_cost_ms, [f"{measured}: batches bring little here"]
    return None, op.request_cost_ms, []


def _batch_size(op: OpFigures) -> int:
    """Return the power of two to use if each worker takes a share of the waiting requests."""
    if math.isnan(op.waiting):
        return 1
    together = op.waiting / op.workers + op.batch_size
    return 1 << int(math.log2(max(1.0, min(_MAX_BATCH, together))))


def _fewer(op: OpFigures, target_per_s: float) -> OpAdvice | None:
    """Advise fewer workers for an Op with spare ones, unless it needs them for the target."""
    needed = _whole(op_concurrency(op.request_cost_ms / 1e3, target_per_s * op.visits))
    if op.busy >= _IDLE or needed * 2 > op.workers:
        return None
    text = f"its {op.workers} workers were busy {op.busy:.0%} of the time: {needed} would do"
    return OpAdvice(op.name, needed, None, (text,))


def _capacity(op: OpFigures, advice: OpAdvice | None) -> float:
    if advice is None:
        return op.capacity_per_s
    workers = advice.concurrency or op.workers
    if advice.batch_size is None:
        cost_ms = op.request_cost_ms
    elif op.line is not None:
        cost_ms = op.line.cost_ms(advice.batch_size)
    else:
        cost_ms = avg_batch_cost(advice.batch_size, op.prep_ms, op.midp_ms, op.postp_ms)
    return workers / (cost_ms / 1e3 * op.visits)


def _notes(figures: Figures, ran: list[OpFigures]) -> list[str]:
    notes = []
    if figures.told < _FEW:
        notes.append(f"these are {figures.told} requests: figures of more are to be trusted")
    for op in ran:
        if op.hand_over_ms > _HAND_OVER_SHARE * op.cost_ms and op.hand_over_ms > 1.0:
            notes.append(
                f"{op.name}: results are {op.hand_over_ms:.3g} ms on their way to the next Op: "
                "hand on less data, or smaller batches"
            )
        if op.growth_per_s > _GROWTH_SHARE * op.requests / figures.seconds:
            notes.append(
                f"{op.name}: its channel grew by {op.growth_per_s:.3g} requests/s, to "
                f"{op.most_waiting:,}"
            )
    if figures.let_in_ms > _WAIT_SHARE * figures.latency.mean:
        notes.append(
            f"requests wait {figures.let_in_ms:.3g} ms to be let in: worker_num says how many "
            "may be inside"
        )
    if figures.unpack_ms + figures.pack_ms > figures.graph_ms:
        notes.append("unpacking and packing take longer than all Ops")
    return notes


def _whole(workers: float) -> int:
    """Round up, but ignore small errors of measurement."""
    return max(1, math.ceil(min(workers, _MAX_NEEDED) * _TRUSTED))
