"""Shedding: refuses requests that would wait in a queue for longer than their deadlines allow.

A queue is judged by how many requests leave it per second while more wait than can begin. A queue
that keeps up refuses no request. Each level of priority is a queue of its own, because a request of
one level goes before all requests of the next. Plain code of (state, now).
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

_MIN_SEEN = 8  # requests that have to leave before any is refused
_MIN_SPANS = 3.0  # ... in at least the time of so many spans at the Op
# measured values fade in this time, or in the time of so many spans if that is longer
_LONG_S, _LONG_SPANS = 1.0, 4.0
_SHORT_S, _SHORT_SPANS = 0.1, 1.0
_FASTER = 1.5  # times the long-term rate is significant
_MAX_GAP_S = 1.0  # between two periods in which a queue is backed up, to count as one
_BURST_SHARE, _QUEUE_SHARE = 0.9, 0.4  # of a request's time may pass before its answer
_EARLIER = 0.75  # of the time before a lasting queue counts, so that its workers stay busy
_MIN_PER_S = 1e-9  # the measured rate may fade to nothing
_MAX_OVER_S = 60.0  # the longest retry-after; nothing is known further ahead
_MOST_LEVELS = 64  # kept although they are empty: clients choose their levels


class _Rate:
    """A rate per second, whose old values fade."""

    def __init__(self) -> None:
        self._count = self._seconds = 0.0

    def passes(self, seconds: float, window_s: float) -> None:
        kept = math.exp(-seconds / window_s)
        self._count *= kept
        # The time before counts with the same weight as the count.
        self._seconds = self._seconds * kept + window_s * (1 - kept)

    def add(self) -> None:
        self._count += 1.0

    @property
    def per_s(self) -> float:
        return self._count / self._seconds if self._seconds > 0 else math.inf


class Throughput:
    """Rate of the requests that leave a queue while more wait than can begin.

    The rate is measured over a second; or over a tenth of a second, if that is so much higher that
    the service has become faster. Both periods are longer if a span at the Op takes longer, because
    all requests of a batch leave together.

    Attributes:
        since: when the queue was first backed up, ignoring short gaps; None: it has not been.
        seen: requests that left since then, including other levels.
        is_backed_up: whether more requests waited than could begin, when last measured.
        span_s: how long a span at the Op took, when last measured.
        served_at: when it was last measured after a request had left.
        usual_per_s: the rate at that time. One measurement lowers it at most to a half, so that one
            slow span does not make all look slow.
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
        """Measure, after all requests that can begin have begun."""
        self.passes(now)
        if is_backed_up and not self.is_backed_up:
            if self.since is None or now - self._until > _MAX_GAP_S:
                self.since, self.seen = now, 0
                self._long, self._short = _Rate(), _Rate()
                self.usual_per_s = 0.0
            self._until = now
        self.is_backed_up, self.span_s = is_backed_up, span_s

    def passes(self, now: float) -> None:
        """Note that time has passed without a change."""
        if self.is_backed_up:
            seconds = now - self._until
            self._long.passes(seconds, max(_LONG_S, _LONG_SPANS * self.span_s))
            self._short.passes(seconds, max(_SHORT_S, _SHORT_SPANS * self.span_s))
            self._until = now
            if self._is_served and seconds > 0:
                self._is_served, self.served_at = False, now
                self.usual_per_s = max(self._long.per_s, self.usual_per_s / 2)

    def served(self, is_own: bool = True) -> None:
        """Note that a request has left; if not `is_own`, a request of another level."""
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
    """Return by how many seconds a new request would be late; None: it may be in time.

    As long as fewer requests have left the queue than can leave in the request's time, the queue
    may be a burst, and all may be in time. A queue that stays longer is persistent, and is kept
    short, but not so short behind another one that its workers wait. A request with enough time
    is not refused because none has left for some time: a slow span ends.

    Args:
        throughput: of the queue, as it is now.
        ahead: requests that come before this one.
        time_left_s: of the new request.
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
    share, earlier = (_BURST_SHARE, 1.0) if is_burst else (_QUEUE_SHARE, _EARLIER)
    takes_s = (ahead + 1) / max(per_s, _MIN_PER_S) + throughput.span_s
    over_s = earlier * passed_s + takes_s - (passed_s + time_left_s) * share
    return min(over_s, _MAX_OVER_S) if over_s > 0 else None


class Shedder:
    """Decides whether a request that comes to an Op can run before its deadline.

    Args:
        op_name: for error texts.
        scheduler: of the Op; it knows the waiting requests.
        load: of the Op's workers.
        least: at least this many requests at a level cannot all begin.

    Attributes:
        is_on: whether any request with a deadline has come; otherwise nothing is measured.
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

        `before`: other requests that will come before it.
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

    def refusal_on_arrival(self, request: RequestState, now: float) -> TooLateError | None:
        """Return why a request that has come to the Op is refused; None: it is not.

        A sequence that has begun continues, because Ops before this one may have made the step.
        """
        info = request.info
        if request.judged_by is self or (info.sequence_id and not info.sequence_start):
            return None
        return self.refusal(request, now)

    def began(self, items: Iterable[Item]) -> None:
        """Note the items that leave the queue as a batch."""
        for item in items:
            own = self._scheduler.level_of(item.request)
            for level, throughput in self._levels.items():
                throughput.served(level == own)

    def look(self, now: float) -> None:
        """Measure each level, after all requests that can begin have begun."""
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
    """Return the error for a request with a deadline that comes to a queue; None: it may wait."""
    assert request.deadline is not None, "the caller checks it"
    left_s = request.deadline - now
    over_s = seconds_over(throughput, now, ahead, left_s, now - request.arrived_at)
    if over_s is None:
        return None
    return kind(
        f"server is overloaded: {ahead} requests are before this one{where} and "
        f"{throughput.per_s:.4g} a second are answered, too few for the {left_s:.3g} s that it "
        "has; try again later.",
        max(1, math.ceil(over_s)),
    )
