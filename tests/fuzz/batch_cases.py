"""Cases of `fuzz.batches`: the requests, their endings, and the rules that hold for both."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.engine.schedulers.dynamic_batcher import EXPIRED, FULL

NAME = "a"
_EPS_S = 1e-6  # events this close are simultaneous, in any order
_US = 1e6


@dataclass(frozen=True)
class Policy:
    """Limits of a level's queue, as in a configuration."""

    action: str = "reject"
    timeout_us: int = 0
    overrides: bool = False
    most: int = 0

    def config(self) -> dict[str, Any]:
        return {
            "timeout_action": self.action,
            "default_timeout_microseconds": self.timeout_us,
            "allow_timeout_override": self.overrides,
            "max_queue_size": self.most,
        }


@dataclass(frozen=True)
class Request:
    """One request. `ragged`: shape of a sample's R; `width`: of its P; `leaves_s`: the time between
    its arrival and its cancellation.
    """

    number: int
    at_s: float
    rows: int
    ragged: tuple[int, int]
    width: int
    has_optional: bool
    runs_s: float
    priority: int = 0
    timeout_us: int = 0
    leaves_s: float | None = None

    @property
    def form(self) -> tuple[int, bool]:
        """Everything that the requests of one execution must have in common."""
        return self.width, self.has_optional

    @property
    def elements(self) -> list[float]:
        count = self.rows * self.ragged[0] * self.ragged[1]
        return [float(self.number * 1000 + place) for place in range(count)]

    def feed(self) -> dict[str, Any]:
        ragged = np.array(self.elements, np.float32).reshape(self.rows, *self.ragged)
        found = {"R": ragged, "P": np.full((self.rows, self.width), self.number, np.float32)}
        if self.has_optional:
            found["O"] = np.full((self.rows, 1), -self.number, np.float32)
        return found


@dataclass(frozen=True)
class Case:
    batch_size: int
    workers: int
    preferred: tuple[int, ...]
    delay_us: int
    levels: int
    default_level: int
    keeps_order: bool
    policies: tuple[Policy, ...]  # the default policy, then one for each of the first levels
    requests: tuple[Request, ...]

    def level_of(self, request: Request) -> int:
        if self.levels <= 1:
            return self.levels
        return request.priority if 1 <= request.priority <= self.levels else self.default_level

    def policy_of(self, request: Request) -> Policy:
        level = self.level_of(request)
        return self.policies[level] if 0 < level < len(self.policies) else self.policies[0]

    def limit_s(self, request: Request) -> float | None:
        """How long it may wait; None: forever."""
        policy = self.policy_of(request)
        limit_us = policy.timeout_us
        if limit_us and policy.overrides and 0 < request.timeout_us < limit_us:
            limit_us = request.timeout_us
        return limit_us / _US if limit_us else None

    def config(self, ragged: dict[str, Any]) -> dict[str, Any]:
        levels = [
            {"level": level, **policy.config()}
            for level, policy in enumerate(self.policies)
            if level
        ]
        batching = {
            "preferred_batch_size": list(self.preferred),
            "max_queue_delay_microseconds": self.delay_us,
            "preserve_ordering": self.keeps_order,
            "priority_levels": self.levels,
            "default_priority_level": self.default_level,
            "default_queue_policy": self.policies[0].config(),
            "priority_queue_policy": levels,
        }
        its = {
            "batch_size": self.batch_size,
            "concurrency": self.workers,
            "batching": "dynamic",
            **ragged,
        }
        return {"rpc_port": 0, "op": {NAME: {**its, "dynamic_batching": batching}}}


@dataclass
class Told:
    """The ending of a request. `place`: the number of earlier ones; `batch`: its execution."""

    came_s: float = 0.0
    place: int = 0
    kind: str = "open"
    text: str = ""
    answer: Any = None
    over_s: float = 0.0
    batch: int | None = None


@dataclass
class Ran:
    """One execution."""

    began_s: float
    numbers: list[int]
    ended_s: float = 0.0


@dataclass
class Record:
    """The events of a case, and the defects found meanwhile."""

    told: dict[int, Told] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    came: int = 0
    order: list[int] = field(default_factory=list)  # `place` of each answered request
    wrong: list[str] = field(default_factory=list)


def made_case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(f"batches {seed}")
    size = rng.choice((1, 2, 4, 8, 8, 16))
    count = rng.choice((0, 0, 1, 2))
    preferred = tuple(sorted(rng.sample(range(1, size + 1), min(count, size))))
    levels = rng.choice((0, 0, 1, 2, 3, 5))
    keeps_order = levels <= 1 and rng.random() < 0.4
    plain = rng.random() < 0.35
    policies = [Policy() if plain else _policy(rng, keeps_order)]
    if not plain and levels:
        policies += [_policy(rng, keeps_order) for _ in range(rng.randint(0, levels))]
    case = Case(
        batch_size=size,
        workers=rng.choice((1, 1, 2, 3)),
        preferred=preferred,
        delay_us=rng.choice((0, 0, 5_003, 40_007)),
        levels=levels,
        default_level=rng.randint(1, levels) if levels else 0,
        keeps_order=keeps_order,
        policies=tuple(policies),
        requests=(),
    )
    forms = [(rng.choice((1, 2)), rng.random() < 0.3) for _ in range(rng.choice((1, 1, 2)))]
    times, requests = 0.0, []
    for number in range(1, rng.randint(2, 40)):
        times += 0.0 if rng.random() < 0.5 else rng.choice((0.0007, 0.0111, 0.0303)) * rng.random()
        requests.append(_request(rng, number, times, case, rng.choice(forms)))
    return replace(case, requests=tuple(requests))


def _policy(rng: random.Random, keeps_order: bool) -> Policy:
    return Policy(
        action="reject" if keeps_order else rng.choice(("reject", "delay")),
        timeout_us=rng.choice((0, 9_001, 30_013)),
        overrides=rng.random() < 0.5,
        most=rng.choice((0, 0, 1, 3, 8)),
    )


def _request(
    rng: random.Random, number: int, at_s: float, case: Case, form: tuple[int, bool]
) -> Request:
    return Request(
        number=number,
        at_s=at_s,
        rows=rng.choice((1, 1, 1, 2, rng.randint(1, case.batch_size))),
        ragged=(rng.randint(1, 4), rng.randint(1, 3)),
        width=form[0],
        has_optional=form[1],
        runs_s=rng.choice((0.0, 0.0053, 0.0201)) * rng.uniform(0.5, 1.0),
        priority=rng.randint(0, case.levels + 1) if case.levels else 0,
        timeout_us=rng.choice((0, 0, 4_001, 90_000)),
        leaves_s=rng.uniform(0.0, 0.03) if rng.random() < 0.07 else None,
    )


class Rules:
    """The rules that the record of a case has to keep."""

    def __init__(self, case: Case, record: Record) -> None:
        self.case, self.record = case, record
        self.by_number = {request.number: request for request in case.requests}

    def findings(self) -> list[str]:
        found = [*self.record.wrong]
        for request in self.case.requests:
            found += self._of_request(request, self.record.told[request.number])
        for place, ran in enumerate(self.record.ran):
            found += self._of_execution(place, ran)
        found += self._of_idle_workers()
        found += self._of_full_queues()
        if self.case.keeps_order and self.record.order != sorted(self.record.order):
            found.append(f"answers came in the order {self.record.order}")
        return found

    def _of_request(self, request: Request, told: Told) -> Iterator[str]:
        limit_s = self.case.limit_s(request)
        refuses = self.case.policy_of(request).action == "reject"
        waited_s = told.over_s - told.came_s
        runs = sum(ran.numbers.count(request.number) for ran in self.record.ran)
        who = f"request {request.number}"
        if runs > 1 or (runs == 0) != (told.batch is None):
            yield f"{who} ran {runs} times"
        if told.kind == "open":
            yield f"{who} has no end"
        elif told.kind == "answer":
            rows = np.array(request.elements).reshape(request.rows, *request.ragged) * 2
            twice, first = told.answer["TWICE"], told.answer["FIRST"]
            if np.shape(twice) != rows.shape or not np.array_equal(twice, rows):
                yield f"{who} was answered {twice!r}"
            if first.tolist() != [[float(request.number)]] * request.rows:
                yield f"{who} was answered {first!r}"
            if told.batch is None:
                yield f"{who} was answered and did not run"
        elif told.kind == "left":
            if request.leaves_s is None:
                yield f"{who} did not leave"
        elif told.text.endswith(EXPIRED):
            if limit_s is None or not refuses or abs(waited_s - limit_s) > _EPS_S or runs:
                yield f"{who} was late after {waited_s}, its limit is {limit_s}"
        elif told.text.endswith(FULL):
            if not 0 < self.case.policy_of(request).most < 1 + self._beside(request, told):
                yield f"{who} found its queue full"
        else:
            yield f"{who} ended with {told.text}"
        if refuses and limit_s is not None:
            until_s = told.over_s if told.batch is None else self.record.ran[told.batch].began_s
            if until_s - told.came_s > limit_s + _EPS_S:
                yield f"{who} waited {until_s - told.came_s}, its limit is {limit_s}"

    def _beside(self, request: Request, told: Told) -> int:
        """Return how many other requests of its level may have waited when it was refused."""
        level = self.case.level_of(request)
        return sum(
            other.number != request.number and self.case.level_of(other) == level
            for other in self._waiting(told.over_s, strictly=False)
        )

    def _waiting(self, now: float, strictly: bool = True) -> list[Request]:
        """Return the waiting requests; `strictly`: without any that came or left just now."""
        eps = _EPS_S if strictly else -_EPS_S
        return [
            request
            for request in self.case.requests
            if (told := self.record.told[request.number]).came_s < now - eps
            and self._went_s(told) > now + eps
        ]

    def _went_s(self, told: Told) -> float:
        """Return when a request has left the queue."""
        return told.over_s if told.batch is None else self.record.ran[told.batch].began_s

    def _place(self, request: Request, now: float) -> tuple[int, float, float, int]:
        """Return the sort key of the queue: the level, since when it is late, when it came."""
        limit_s, told = self.case.limit_s(request), self.record.told[request.number]
        delays = self.case.policy_of(request).action == "delay" and limit_s is not None
        late_s = told.came_s + (limit_s or 0.0) if delays else 0.0
        since_s = late_s if delays and late_s <= now + _EPS_S else 0.0
        return self.case.level_of(request), since_s, told.came_s, told.place

    def _of_execution(self, place: int, ran: Ran) -> Iterator[str]:
        asked = [self.by_number[number] for number in ran.numbers]
        rows, now = sum(request.rows for request in asked), ran.began_s
        what = f"execution {place} of {ran.numbers}"
        if len(asked) > 1 and rows > self.case.batch_size:
            yield f"{what} has {rows} rows"
        if len({request.form for request in asked}) > 1:
            yield f"{what} has several forms"
        last = max(self._place(request, now) for request in asked)
        passed = [each for each in self._waiting(now) if self._place(each, now) < last]
        passed = [each for each in passed if not self._turns_late(each, now)]
        if passed and not any(self._turns_late(each, now) for each in asked):
            yield f"{what} passed {[request.number for request in passed]} by"
        yield from self._of_early(what, asked, rows, now)

    def _turns_late(self, request: Request, now: float) -> bool:
        limit_s = self.case.limit_s(request)
        came_s = self.record.told[request.number].came_s
        return limit_s is not None and abs(came_s + limit_s - now) <= _EPS_S

    def _of_early(self, what: str, asked: list[Request], rows: int, now: float) -> Iterator[str]:
        """Check that a batch that is neither preferred nor full has waited, or could not grow.

        A batch may be cut while all workers are busy. A request that was in it, or kept it from
        growing, may have left since.
        """
        case, preferred = self.case, self.case.preferred or (self.case.batch_size,)
        came_s = min(self.record.told[request.number].came_s for request in asked)
        is_due = now >= came_s + case.delay_us / _US - _EPS_S
        if is_due or rows in preferred or rows >= max(preferred):
            return
        last_s = max(self.record.told[request.number].came_s for request in asked)
        could_stay = [
            each
            for each in self._waiting(now, strictly=False)
            if each not in asked
            and (each.form != asked[0].form or rows + each.rows > max(preferred))
        ]
        if not could_stay and not self._who_left(last_s, now):
            yield f"{what} began after {now - came_s}, with {rows} rows"

    def _who_left(self, since_s: float, now: float) -> list[Request]:
        """Return the requests that came before `now` and left the queue between these times."""
        told = self.record.told
        return [
            request
            for request in self.case.requests
            if told[request.number].came_s < now + _EPS_S
            and told[request.number].batch is None
            and since_s - _EPS_S < told[request.number].over_s <= now
        ]

    def _of_idle_workers(self) -> Iterator[str]:
        """Check that no request waits longer than the delay while a worker is free."""
        delay_s = self.case.delay_us / _US
        times = sorted({each for ran in self.record.ran for each in (ran.began_s, ran.ended_s)})
        for early, late in itertools.pairwise(times):
            middle = (early + late) / 2
            busy = sum(ran.began_s <= middle < ran.ended_s for ran in self.record.ran)
            if busy >= self.case.workers or late - early < 10 * _EPS_S:
                continue
            for request in self._waiting(late - 2 * _EPS_S):
                since_s = max(early, self.record.told[request.number].came_s + delay_s)
                if late - since_s > 10 * _EPS_S and self._is_first(request, late):
                    yield f"request {request.number} waited for {late - since_s} beside the idle"

    def _of_full_queues(self) -> Iterator[str]:
        """Check that no queue holds more requests than it has places."""
        gone = [self._went_s(told) for told in self.record.told.values()]
        times = sorted({*gone, *(told.came_s for told in self.record.told.values())})
        for early, late in itertools.pairwise(times):
            if late - early < 10 * _EPS_S:
                continue
            waiting = self._waiting((early + late) / 2)
            for level in {self.case.level_of(request) for request in waiting}:
                its = [each for each in waiting if self.case.level_of(each) == level]
                most = self.case.policy_of(its[0]).most
                if 0 < most < len(its):
                    yield f"{len(its)} wait in level {level}, which has {most} places"

    def _is_first(self, request: Request, now: float) -> bool:
        others = self._waiting(now - 2 * _EPS_S)
        return min(others, key=lambda each: self._place(each, now)) is request
