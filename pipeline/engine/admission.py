"""AdmissionController: bounds the requests in an engine's graph, and those that wait before it.

It refuses who cannot be answered in time, as Facebook's and Envoy's admission control do: only
requests with a deadline are judged, and only while more wait than can be begun. A server that keeps
up refuses nobody.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable

from pipeline.config.schema import OpConfig
from pipeline.engine.request import QUEUED, RequestState
from pipeline.errors import OverloadedError

_DEFAULT_CAP = 256  # requests in the graph where neither worker_num nor the batches say more
_MOST_PARKED = 262_144  # requests of sequences that wait for others and take no place
_MIN_SEEN = 8  # requests that have to be answered before anybody is refused
_MIN_SPANS = 3.0  # ... in at least the time of so many spans at the slowest Op
_LONG_S, _LONG_SPANS = 1.0, 4.0  # what is measured fades in this time, and not before so many spans
_SHORT_S, _SHORT_SPANS = 0.1, 1.0
_MAX_GAP_S = 1.0  # of a queue that is there again and again
_BURST_SHARE, _QUEUE_SHARE = 0.9, 0.4  # of a request's time may pass before it is answered
_MIN_PER_S = 1e-9  # what was measured may fade to nothing
_MAX_OVER_S = 60.0  # nobody is told to come back later than that: nothing is known so far ahead


def places_for(ops: Iterable[OpConfig]) -> int:
    """Return how many requests a graph of such Ops takes: for each worker a batch and the next."""
    most = sum(max(op.concurrency, op.max_workers or 0) * op.batch_size for op in ops)
    return max(_DEFAULT_CAP, 2 * most)


class ActiveRequests(set[RequestState]):
    """Requests in the graph; `beside` are those of convoys, but for one of each."""

    beside: int = 0


class AdmissionController:
    """Admits requests to the graph, in order of arrival.

    Args:
        cap: most that are in the graph.
        enter: takes a request that is admitted.
        clock: seconds, that of the deadlines.

    Attributes:
        queue_size: most that wait.
        active: requests that are in the graph, or whose answers are packed.
        queued: requests that wait to be admitted.
        accepted: requests that were admitted, or queued.
        rejected: requests that were sent away.
        throughput: of requests that were answered; None: none had a deadline so far.
        is_open: whether any is admitted at all.
        is_full: whether the graph takes no more now, however few are in it.
        parked: how many of those in it wait for others who may still have to come, and so take no
            place; None: never any.
    """

    def __init__(
        self,
        cap: int,
        queue_size: int,
        enter: Callable[[RequestState], None],
        clock: Callable[[], float],
    ) -> None:
        self.active: ActiveRequests = ActiveRequests()
        self.queued: int = 0
        self._is_admitting = False
        self.accepted: int = 0
        self.rejected: int = 0
        self.is_open: bool = False
        self.is_full: Callable[[], bool] | None = None
        self.parked: Callable[[], int] | None = None
        self._queue: OrderedDict[RequestState, None] = OrderedDict()
        self._late: dict[RequestState, None] = {}
        self._cap = cap
        self.queue_size: int = queue_size
        self._enter = enter
        self._clock = clock
        self.throughput: Throughput | None = None

    @property
    def inside(self) -> int:
        """Return how many requests are active."""
        return len(self.active) + self.active.beside

    def has_room(self, count: int) -> bool:
        """Return whether so many more may become active at once."""
        return not self.queued and self._has_room(count)

    @property
    def is_empty(self) -> bool:
        """Return whether every request is answered."""
        return not self.active and not self.queued

    def all_requests(self) -> Iterable[RequestState]:
        """Return all requests that are not answered, in a list of its own."""
        return [*self.active, *self._queue, *self._late]

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another, where `queue_size` wait."""
        if not self.queued and self._has_room():
            return
        self.rejected += 1
        raise OverloadedError(
            f"server is overloaded: {self.inside} requests inside and "
            f"{self.queued} waiting (queue_size); try again later."
        )

    def judge(self, time_left_s: float) -> None:
        """Raise OverloadedError if a request with so much time left cannot be answered in it."""
        throughput = self.throughput = self.throughput or Throughput()
        if not throughput.is_backed_up:
            return
        now = self._clock()
        throughput.passes(now)
        ahead = self.inside + self.queued - self._parked()
        over_s = seconds_over(throughput, now, ahead, time_left_s)
        if over_s is None:
            return
        self.rejected += 1
        raise OverloadedError(
            f"server is overloaded: {ahead} requests are before this one and "
            f"{throughput.per_s:.4g} a second are answered, too few for the {time_left_s:.3g} s "
            "that it has; try again later.",
            max(1, math.ceil(over_s)),
        )

    def submit(self, request: RequestState) -> None:
        """Admit a request, or let it wait."""
        self.accepted += 1
        has_place = (
            self.is_open and not self.queued and len(self.active) + self.active.beside < self._cap
        )
        if request.convoy is not None:
            self.accepted += len(request.convoy) - 1
        if has_place and (self.is_full is None or not self.is_full()):
            self._admit(request)
        else:
            request.advance(QUEUED)
            self._queue[request] = None
            self._count()
            if self.parked is not None:
                self.admit_queued()

    def release(self, request: RequestState, is_served: bool) -> None:
        """Give the place of a request that is over to the next one that waits.

        `is_served`: it got its answer, be it an error, and did not just leave.
        """
        if is_served and self.throughput is not None:
            self.throughput.served()
        if request.convoy is not None and request in self.active:
            self.active.beside -= len(request.convoy) - 1
        self.active.discard(request)
        if self.queued:
            self._queue.pop(request, None)
            self._late.pop(request, None)
            self._count()
            self.admit_queued()

    def admit_queued(self) -> None:
        """Admit who waits, as far as there is room: the late ones last, and the newest first.

        Requests of sequences keep their order. One that is over at once, as it is refused, makes
        room for the next: that is seen to here, however many there are, and not in each other.
        """
        if self._is_admitting or not self.queued:
            return
        self._is_admitting = True
        try:
            while self.queued and self._has_room():
                self._admit_next()
        finally:
            self._is_admitting = False

    def _admit_next(self) -> None:
        if not self._queue:
            request = self._late.popitem()[0]
        else:
            request = next(iter(self._queue))
            del self._queue[request]
            span_s = self.throughput.span_s if self.throughput is not None else 0.0
            if request.is_late(self._clock(), span_s) and not request.info.sequence_id:
                self._late[request] = None
                return
        self._count()
        self._admit(request)

    def _admit(self, request: RequestState) -> None:
        self.active.add(request)
        if request.convoy is not None:
            self.active.beside += len(request.convoy) - 1
        self._enter(request)

    def _count(self) -> None:
        self.queued = len(self._queue) + len(self._late)

    def _parked(self) -> int:
        return 0 if self.parked is None else min(self.parked(), _MOST_PARKED)

    def _has_room(self, count: int = 1) -> bool:
        has_place = self.is_open and self.inside + count <= self._cap + self._parked()
        return has_place and (self.is_full is None or not self.is_full())


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
    """Count of the requests a second that get through while more wait than can be begun.

    The higher of two counts: over a second, and over a tenth of one, which knows at once of a
    service that became faster. Both last longer where a span at an Op does: of a batch all come at
    the same time.

    Attributes:
        since: when more were waiting first, but for short gaps; None: they are not, or were not
            for long.
        seen: requests answered since then.
        is_backed_up: whether more waited, at the last look, than could be begun.
        span_s: what a span at the slowest Op took, at the last look.
        answered_at: when it was last looked after an answer.
        usual_per_s: how many a second it was then; each answer halves it at most, so that the
            first one behind a single slow span does not say that all are slow.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.seen: int = 0
        self.is_backed_up: bool = False
        self.span_s: float = 0.0
        self.answered_at: float = 0.0
        self.usual_per_s: float = 0.0
        self._is_answered = False
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
            if self._is_answered:
                self._is_answered, self.answered_at = False, now
                self.usual_per_s = max(self._long.per_s, self.usual_per_s / 2)

    def served(self) -> None:
        """Take down that a request was answered."""
        if self.is_backed_up:
            self.seen += 1
            self._is_answered = True
            self._long.add()
            self._short.add()

    @property
    def per_s(self) -> float:
        return max(self._long.per_s, self._short.per_s)


def seconds_over(
    throughput: Throughput, now: float, ahead: int, time_left_s: float
) -> float | None:
    """Return by how much a request that comes now would be late; None: it may be in time.

    A queue of which not so many were answered yet as can be in that time may be a burst, and all
    of it may be in time. One that is there still after that many will stay: it is kept short.
    Who has time is not refused because nothing was answered for a while: one slow span ends.

    Args:
        throughput: as it is now.
        ahead: requests that are not answered yet.
        time_left_s: of the one that comes.
    """
    since = throughput.since
    if since is None or not throughput.is_backed_up or throughput.seen < _MIN_SEEN:
        return None
    if now - since < _MIN_SPANS * throughput.span_s:
        return None
    per_s = throughput.per_s
    if now - throughput.answered_at < time_left_s * _QUEUE_SHARE:
        per_s = max(per_s, throughput.usual_per_s)
    is_burst = throughput.seen < per_s * time_left_s
    part = _BURST_SHARE if is_burst else _QUEUE_SHARE
    over_s = (ahead + 1) / max(per_s, _MIN_PER_S) - time_left_s * part
    return min(over_s, _MAX_OVER_S) if over_s > 0 else None
