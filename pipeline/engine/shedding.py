"""Shedding: who would wait in a queue for longer than it has time for, and so is refused.

A queue is judged by what leaves it a second while more wait than can be begun; one that keeps up
refuses nobody. Each level of priority is a queue of its own, for who comes at one goes before all
that wait at the next. Plain code of (state, now).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from pipeline.engine.schedulers.base import Load, Scheduler
from pipeline.errors import OverloadedError, TooLateError

if TYPE_CHECKING:
    from pipeline.engine.op.channel import Item
    from pipeline.engine.request import RequestState

Shed = TypeVar("Shed", bound=OverloadedError)

_MIN_SEEN = 8  # requests that have to leave before anybody is refused
_MIN_SPANS = 3.0  # ... in at least the time of so many spans at the Op
_LONG_S, _LONG_SPANS = 1.0, 4.0  # what is measured fades in this time, and not before so many spans
_SHORT_S, _SHORT_SPANS = 0.1, 1.0
_FASTER = 1.5  # times the usual count is no accident
_MAX_GAP_S = 1.0  # of a queue that is there again and again
_BURST_SHARE, _QUEUE_SHARE = 0.9, 0.4  # of a request's time may pass before it is answered
_MIN_PER_S = 1e-9  # what was measured may fade to nothing
_MAX_OVER_S = 60.0  # nobody is told to come back later than that: nothing is known so far ahead
_MOST_LEVELS = 64  # that are kept though nobody waits there: callers choose theirs


class _Rate:
    """A count a second that fades."""

    def __init__(self) -> None:
        self._count = self._seconds = 0.0

    def passes(self, seconds: float, window_s: float) -> None:
        kept = math.exp(-seconds / window_s)
        self._count *= kept
        # As if the count came evenly: so much of the time before it counts as well.
        self._seconds = self._seconds * kept + window_s * (1 - kept)

    def add(self) -> None:
        self._count += 1.0

    @property
    def per_s(self) -> float:
        return self._count / self._seconds if self._seconds > 0 else math.inf


class Throughput:
    """Count of the requests a second that leave a queue while more wait than can be begun.

    The count over a second; or that over a tenth of one, where it is so much higher that the
    service became faster. Both last longer where a span at an Op does: of a batch all come at the
    same time.

    Attributes:
        since: when more were waiting first, but for short gaps; None: they are not, or were not
            for long.
        seen: requests that left since then, those of other levels too.
        is_backed_up: whether more waited, at the last look, than could be begun.
        span_s: what a span at the Op took, at the last look.
        served_at: when it was last looked after one had left.
        usual_per_s: how many a second it was then; each of them halves it at most, so that the
            first one behind a single slow span does not say that all are slow.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.seen: int = 0
        self.is_backed_up: bool = False
        self.span_s: float = 0.0
        self.served_at: float = 0.0
        self.usual_per_s: float = 0.0
        self._is_served = False
        self._until = 0.0
        self._long, self._short = _Rate(), _Rate()

    def look(self, now: float, is_backed_up: bool, span_s: float) -> None:
        """Take down how it stands when all was begun that can be."""
        self.passes(now)
        if is_backed_up and not self.is_backed_up:
            if self.since is None or now - self._until > _MAX_GAP_S:
                self.since, self.seen = now, 0
                self._long, self._short = _Rate(), _Rate()
                self.usual_per_s = 0.0
            self._until = now
        self.is_backed_up, self.span_s = is_backed_up, span_s

    def passes(self, now: float) -> None:
        """Take down that time passed and nothing changed."""
        if self.is_backed_up:
            seconds = now - self._until
            self._long.passes(seconds, max(_LONG_S, _LONG_SPANS * self.span_s))
            self._short.passes(seconds, max(_SHORT_S, _SHORT_SPANS * self.span_s))
            self._until = now
            if self._is_served:
                self._is_served, self.served_at = False, now
                self.usual_per_s = max(self._long.per_s, self.usual_per_s / 2)

    def served(self, is_own: bool = True) -> None:
        """Take down that a request has left; one of another level: that it could not."""
        if self.is_backed_up:
            self.seen += 1
            if is_own:
                self._is_served = True
                self._long.add()
                self._short.add()

    @property
    def per_s(self) -> float:
        short, long = self._short.per_s, self._long.per_s
        return short if short > _FASTER * long else long


def seconds_over(
    throughput: Throughput, now: float, ahead: int, time_left_s: float, passed_s: float = 0.0
) -> float | None:
    """Return by how much a request that comes now would be late; None: it may be in time.

    A queue that not so many have left yet as can in that time may be a burst, and all of it may be
    in time. One that is there still after that many will stay: it is kept short. Who has time is
    not refused because nobody left for a while: one slow span ends.

    Args:
        throughput: of the queue, as it is now.
        ahead: requests that are before it.
        time_left_s: of the one that comes.
        passed_s: of its time, before it came here.
    """
    since = throughput.since
    if since is None or not throughput.is_backed_up or throughput.seen < _MIN_SEEN:
        return None
    if now - since < _MIN_SPANS * throughput.span_s:
        return None
    per_s = throughput.per_s
    if now - throughput.served_at < time_left_s * _QUEUE_SHARE:
        per_s = max(per_s, throughput.usual_per_s)
    is_burst = throughput.seen < per_s * time_left_s
    part = _BURST_SHARE if is_burst else _QUEUE_SHARE
    takes_s = (ahead + 1) / max(per_s, _MIN_PER_S) + throughput.span_s
    over_s = passed_s + takes_s - (passed_s + time_left_s) * part
    return min(over_s, _MAX_OVER_S) if over_s > 0 else None


class Shedder:
    """Judge of those who come to an Op: whether their turn comes in their time.

    Args:
        op_name: for what they are told.
        scheduler: the Op's, which knows who waits.
        load: of its workers.
        least: requests at a level that are so many that they cannot all begin.

    Attributes:
        is_on: whether anybody with a deadline has come so far; else nothing is measured.
    """

    def __init__(self, op_name: str, scheduler: Scheduler, load: Load, least: int) -> None:
        self.is_on: bool = False
        self._op_name = op_name
        self._scheduler = scheduler
        self._load = load
        self._least = least
        self._levels: dict[int, Throughput] = {}

    def refusal(self, request: RequestState, now: float, before: int = 0) -> TooLateError | None:
        """Return why a request that comes to the Op now is refused; None: it is not.

        `before`: others that will come before it.
        """
        self.is_on = True
        level = self._scheduler.level_of(request)
        throughput = self._levels.get(level)
        if throughput is None or not throughput.is_backed_up:
            return None
        ahead = self._scheduler.levels().get(level, 0) + before
        if ahead < self._least:
            return None
        throughput.passes(now)
        where = f" at Op {self._op_name!r}"
        return too_late(TooLateError, throughput, request, now, ahead, where)

    def refusal_here(self, request: RequestState, now: float) -> TooLateError | None:
        """Return why a request that has come to the Op is refused; None: it is not.

        A sequence that has begun goes on: Ops before this one may have made the step.
        """
        info = request.info
        if request.judged_by is self or (info.sequence_id and not info.sequence_start):
            return None
        return self.refusal(request, now)

    def began(self, items: Iterable[Item]) -> None:
        """Take down who leaves the queue, as a batch that was cut."""
        for item in items:
            own = self._scheduler.level_of(item.request)
            for level, throughput in self._levels.items():
                throughput.served(level == own)

    def look(self, now: float) -> None:
        """Take down how it stands when all was begun that can be."""
        waiting, levels = self._scheduler.levels(), self._levels
        for level, count in waiting.items():
            if level in levels or count >= self._least:
                throughput = levels.get(level) or levels.setdefault(level, Throughput())
                throughput.look(now, count >= self._least, self._load.service_s)
        for level in [level for level in levels if level not in waiting]:
            levels[level].look(now, False, self._load.service_s)
            if len(levels) > _MOST_LEVELS:
                del levels[level]


def too_late(
    kind: type[Shed],
    throughput: Throughput,
    request: RequestState,
    now: float,
    ahead: int,
    where: str = "",
) -> Shed | None:
    """Return the error of a request with a deadline that comes to a queue now; None: it may."""
    assert request.deadline is not None, "else it is not judged"
    left_s = request.deadline - now
    over_s = seconds_over(throughput, now, ahead, left_s, now - request.asked_at)
    if over_s is None:
        return None
    return kind(
        f"server is overloaded: {ahead} requests are before this one{where} and "
        f"{throughput.per_s:.4g} a second are answered, too few for the {left_s:.3g} s that it "
        "has; try again later.",
        max(1, math.ceil(over_s)),
    )
