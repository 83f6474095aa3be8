"""`python -m fuzz.loads`: random overload by several kinds of requests; checks their shares.

One slow Op gets more requests than it can answer. Quick requests come at the same time and do not
wait for the slow ones: an earlier Op answers them, their answers are in a cache, or they have the
first priority. The share of each kind follows from rates and times alone. The clock is virtual, so
that a seed gives the same case every time. `MUTANTS` are wrong judges; the fuzzer has to find each.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from doubles import Engine, Tag, run_virtual
from offered_load import ANSWERED, REFUSED, TOO_LATE, Load

from fuzz.campaign import campaign, parser_of
from pipeline import Answer, Goto, Op, RequestOp
from pipeline.caches.local import LocalCache, LocalOptions
from pipeline.engine import admission, engine, shedding
from pipeline.engine.admission import AdmissionController
from pipeline.engine.executor import Executor
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.cache import ModelCache
from pipeline.engine.schedulers.dynamic_batcher import DynamicBatcher
from pipeline.engine.shedding import Shedder, Throughput
from pipeline.errors import OverloadedError

KINDS = ("answered", "sent past", "kept of the graph", "kept of the Op", "levels")
_LEAST = 0.85  # of a share: batches cross both ends of the period
_GATE_S = 0.001


@dataclass(frozen=True)
class Case:
    """A case. Rates are per second; `times`: the load of the slow Op, relative to its capacity.

    Attributes:
        kind: the reason why quick requests do not wait: one of KINDS.
        workers: of the slow Op, with batches of `batch_size` that take `batch_s`.
        quick_per_s: the rate of quick requests.
        burst: the number of requests that come at once before the load, and then some more.
        has_join: whether the slow Op is one of two branches.
        tick_s: the steps of the loop's time; 0: it has none.
    """

    kind: str
    workers: int
    batch_size: int
    batch_s: float
    times: float
    quick_per_s: float
    deadline_s: float
    burst: int
    has_join: bool
    tick_s: float = 0.0

    @property
    def capacity(self) -> float:
        return self.workers * self.batch_size / self.batch_s

    @property
    def share(self) -> float:
        """The share of the slow requests."""
        return self.capacity - (self.quick_per_s if self.kind == "levels" else 0.0)

    @property
    def seconds(self) -> float:
        return 3 * self.deadline_s + 2.0


def made_case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    batch_size = 1 if kind == "levels" else rng.choice((1, 1, 4, 8))
    batch_s = round(rng.uniform(0.02, 0.1) * (1 if batch_size == 1 else 3), 3)
    workers = rng.choice((1, 2, 4))
    capacity = workers * batch_size / batch_s
    # Long enough for a queue, and short enough that not too many wait in time.
    deadline_s = min(rng.uniform(1.0, 2.5) + 10 * batch_s, 3000 / capacity)
    return Case(
        kind,
        workers,
        batch_size,
        batch_s,
        rng.choice((0.8, 2.0, 4.0, 10.0)),
        round(rng.uniform(0.1, 0.5) * capacity, 2),
        round(deadline_s, 3),
        int(rng.uniform(0.2, 0.7) * deadline_s * capacity),
        rng.random() < 0.3,
        rng.choice((0.0, 0.001)),
    )


class Gate(Op):
    """Ends quick requests, or sends them past the slow Op."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fed,) = input_dicts.values()
        if fed["path"] != "quick":
            return fed
        return Goto(fed, "beside") if self.pipeline_goes else Answer(fed)


def graph_of(case: Case) -> tuple[Op, dict[str, Any]]:
    """Return the last Op, and the configuration."""
    slow: dict[str, Any] = {"concurrency": case.workers, "batch_size": case.batch_size}
    config: dict[str, Any] = {"op": {"slow": slow, "gate": {"concurrency": 4}}}
    source: Op = RequestOp()
    if case.kind in ("answered", "sent past"):
        source = Gate("gate", source)
        source.pipeline_goes = case.kind == "sent past"  # type: ignore[attr-defined]
    elif case.kind == "levels":
        levels = {"priority_levels": 2, "default_priority_level": 2}
        slow |= {"batching": "dynamic", "dynamic_batching": levels}
    elif case.kind == "kept of the Op":
        slow["response_cache"] = True
    else:
        config["response_cache"] = True
    last: Op = Tag("slow", [source])
    if case.kind == "sent past":
        beside = Tag("beside", [source])
        config["op"]["last"] = {"channel_recv_frist_arrive": True}
        last = Tag("last", [last, beside])
    elif case.has_join and case.kind != "kept of the Op":
        last = Tag("last", [last, Tag("beside", [source])])
    return last, config


def run(case: Case) -> list[str]:
    """Return the defects that this case shows."""
    return run_virtual(_run(case), case.tick_s)


async def _run(case: Case) -> list[str]:
    last, config = graph_of(case)
    cache = ModelCache(ServerCache("local", LocalCache(LocalOptions(size=1 << 26))), "svc", "1")
    has_cache = case.kind.startswith("kept")
    times = {"slow": case.batch_s, "gate": _GATE_S}
    async with Engine(last, config, times, cache=cache if has_cache else None) as served:
        findings = await _burst(case, served)
        is_level = case.kind == "levels"
        quick = Load(served, priority=int(is_level), path="quick")
        slow = Load(served, priority=2 * is_level, path="miss %")
        if has_cache:  # fill it
            await Load(served, path="quick").offer(0.1, 10.0, None)
            await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(
            quick.offer(case.seconds, case.quick_per_s, case.deadline_s),
            slow.offer(case.seconds, case.times * case.share, case.deadline_s),
        )
        findings += _of_quick(await quick.ended())
        await slow.ended()
        findings += _of_slow(case, slow, began)
        state = served.executor.state()
        if state.inside or state.waiting or any(op.queued or op.running for op in state.ops):
            findings.append(f"not at rest: {state}")
    return findings


async def _burst(case: Case, served: Engine) -> list[str]:
    """Send an idle server two bursts that it can answer in time."""
    burst = Load(served, priority=2 * (case.kind == "levels"), path="burst %")
    later_s = 0.25 * case.deadline_s
    left = max(0.0, case.burst - later_s * case.capacity)
    more = int(0.6 * case.deadline_s * case.capacity - left)
    await burst.offer(0.001, 1000 * case.burst, case.deadline_s)
    await asyncio.sleep(later_s)
    await burst.offer(0.001, 1000 * more, case.deadline_s)
    found = await burst.ended()
    await asyncio.sleep(2.0)
    return [] if found.keys() <= {ANSWERED} else [f"endings of an easy burst: {found}"]


def _of_quick(found: Any) -> Iterator[str]:
    if found.keys() - {ANSWERED}:
        yield f"endings of quick requests: {dict(found)}"


def _of_slow(case: Case, slow: Load, began: float) -> Iterator[str]:
    from_s = case.deadline_s
    answered = slow.answered_between(began + from_s, began + case.seconds)
    least = _LEAST * min(1.0, case.times) * case.share * (case.seconds - from_s)
    if answered < least - case.batch_size * case.workers:
        yield f"{answered} slow requests were answered, expected {least / _LEAST:.0f}"
    ends = {
        how: [came for came, each, _ in slow.endings if each == how] for how in (REFUSED, TOO_LATE)
    }
    if case.times < 1 and (ends[REFUSED] or ends[TOO_LATE]):
        yield f"{len(ends[REFUSED])} refused, {len(ends[TOO_LATE])} late, though there was time"
    late = [came for came in ends[TOO_LATE] if came > began + 2 * case.deadline_s]
    if len(late) > 0.05 * len(slow.endings):
        yield f"{len(late)} of {len(slow.endings)} expired, and were not refused"


# Mutants --------------------------------------------------------------------------------------

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]


def everybody_inside_is_before() -> contextlib.AbstractContextManager[Any]:
    """The judge places all requests inside before a new one, at the slowest Op's rate."""

    def judge(request: Any, controller: AdmissionController, executor: Executor) -> None:
        for node in executor.nodes.values():
            for throughput in node.shedder._levels.values():
                if throughput.is_backed_up:
                    ahead = controller.inside
                    now = request.arrived_at
                    error = shedding.too_late(OverloadedError, throughput, request, now, ahead)
                    if error is not None:
                        raise error

    return mock.patch.object(engine, "judge", judge)


def all_levels_are_one_queue() -> contextlib.AbstractContextManager[Any]:
    """The requests that wait at any level are before each new one."""
    levels = DynamicBatcher.levels

    def summed(self: DynamicBatcher) -> dict[int, int]:
        found = levels(self)
        return dict.fromkeys(found, sum(found.values()))

    return mock.patch.object(DynamicBatcher, "levels", summed)


def cached_answers_are_judged_first() -> contextlib.AbstractContextManager[Any]:
    """The first Op judges a request although its answer may be in the cache."""

    def first_of(request: Any, executor: Executor) -> Any:
        return executor.entries[0]

    return mock.patch.object(admission, "_first_of", first_of)


def no_op_refuses() -> contextlib.AbstractContextManager[Any]:
    """Only the admission refuses requests."""
    return mock.patch.object(Shedder, "refusal_on_arrival", return_value=None)


def each_answer_counts_twice() -> contextlib.AbstractContextManager[Any]:
    """Rates are doubled."""
    served = Throughput.served

    def twice(self: Throughput, is_own: bool = True) -> None:
        served(self, is_own)
        served(self, is_own)

    return mock.patch.object(Throughput, "served", twice)


def bursts_are_kept_short() -> contextlib.AbstractContextManager[Any]:
    """A possible burst is treated as a lasting queue."""
    return mock.patch.object(shedding, "_BURST_SHARE", 0.1)


def a_level_is_measured_by_all() -> contextlib.AbstractContextManager[Any]:
    """A request that leaves at one level also counts for the others."""
    served = Throughput.served
    return mock.patch.object(Throughput, "served", lambda self, is_own=True: served(self))


MUTANTS: dict[str, Mutant] = {
    each.__name__: each
    for each in (
        everybody_inside_is_before,
        all_levels_are_one_queue,
        cached_answers_are_judged_first,
        no_op_refuses,
        each_answer_counts_twice,
        bursts_are_kept_short,
        a_level_is_measured_by_all,
    )
}


def main() -> int:
    parser = parser_of("loads", __doc__, MUTANTS)
    given = parser.parse_args()
    with MUTANTS[given.mutant]() if given.mutant else contextlib.nullcontext():
        return campaign(parser.prog, given, lambda seed: run(made_case(seed)))


if __name__ == "__main__":
    sys.exit(main())
