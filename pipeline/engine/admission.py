"""AdmissionController: bounds the requests in an engine's graph, and those that wait before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pipeline.engine.load_shedding import Throughput, seconds_over
from pipeline.engine.request import QUEUED, RequestState
from pipeline.errors import OverloadedError


class AdmissionController:
    """Admits requests to the graph, in order of arrival.

    Args:
        cap: most that are in the graph.
        queue_size: most that wait.
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
    """

    def __init__(
        self,
        cap: int,
        queue_size: int,
        enter: Callable[[RequestState], None],
        clock: Callable[[], float],
    ) -> None:
        self.active: set[RequestState] = set()
        self.queued: int = 0
        self.accepted: int = 0
        self.rejected: int = 0
        self.is_open: bool = False
        self.is_full: Callable[[], bool] | None = None
        self._queue: dict[RequestState, None] = {}
        self._late: dict[RequestState, None] = {}
        self._cap = cap
        self.queue_size: int = queue_size
        self._enter = enter
        self._clock = clock
        self.throughput: Throughput | None = None

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
            f"server is overloaded: {len(self.active)} requests inside and "
            f"{self.queued} waiting (queue_size); try again later."
        )

    def judge(self, time_left_s: float) -> None:
        """Raise OverloadedError if a request with so much time left cannot be answered in it."""
        throughput = self.throughput = self.throughput or Throughput()
        if not throughput.is_backed_up:
            return
        now = self._clock()
        throughput.passes(now)
        ahead = len(self.active) + self.queued
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
        has_place = self.is_open and not self.queued and len(self.active) < self._cap
        if has_place and (self.is_full is None or not self.is_full()):
            self.active.add(request)
            self._enter(request)
        else:
            request.advance(QUEUED)
            self._queue[request] = None
            self._count()

    def release(self, request: RequestState, is_served: bool) -> None:
        """Give the place of a request that is over to the next one that waits.

        `is_served`: it got its answer, be it an error, and did not just leave.
        """
        if is_served and self.throughput is not None:
            self.throughput.served()
        self.active.discard(request)
        if self.queued:
            self._queue.pop(request, None)
            self._late.pop(request, None)
            self._count()
            self.admit_queued()

    def admit_queued(self) -> None:
        """Admit who waits, as far as there is room: the late ones last, and the newest first."""
        now = self._clock() if self.queued else 0.0
        span_s = self.throughput.span_s if self.throughput is not None else 0.0
        while self.queued and self._has_room():
            if not self._queue:
                request = self._late.popitem()[0]
            else:
                request = next(iter(self._queue))
                del self._queue[request]
                if request.is_late(now, span_s):
                    self._late[request] = None
                    continue
            self._count()
            self.active.add(request)
            self._enter(request)

    def _count(self) -> None:
        self.queued = len(self._queue) + len(self._late)

    def _has_room(self) -> bool:
        has_place = self.is_open and len(self.active) < self._cap
        return has_place and (self.is_full is None or not self.is_full())
