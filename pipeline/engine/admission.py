"""AdmissionController: bounds the requests inside an engine, and those that wait before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pipeline.engine.load_shedding import Throughput, seconds_over
from pipeline.engine.request import RequestState
from pipeline.errors import OverloadedError


class AdmissionController:
    """Requests that are inside, and those that wait to be let in, in order of arrival.

    Args:
        cap: most that are inside.
        queue_size: most that wait.
        is_open: whether the engine takes any now, however few there are.
        enter: takes a request that is let in.
        clock: seconds, that of the deadlines.

    Attributes:
        accepted: requests that were let in, or were let wait.
        rejected: requests that were sent away.
        waiting: requests that wait to be let in.
        judges: whether any request had a deadline so far.
    """

    def __init__(
        self,
        cap: int,
        queue_size: int,
        is_open: Callable[[], bool],
        enter: Callable[[RequestState], None],
        clock: Callable[[], float],
    ) -> None:
        self.inside: set[RequestState] = set()
        self._waiting: dict[RequestState, None] = {}
        self._late: dict[RequestState, None] = {}
        self.accepted: int = 0
        self.rejected: int = 0
        self.waiting: int = 0
        self.judges: bool = False
        self._cap = cap
        self._queue_size = queue_size
        self._is_open = is_open
        self._enter = enter
        self._clock = clock
        self._throughput: Throughput | None = None  # from the first deadline on

    @property
    def is_empty(self) -> bool:
        return not self.inside and not self.waiting

    def everybody(self) -> Iterable[RequestState]:
        """All requests that are not answered, in a list of its own."""
        return [*self.inside, *self._waiting, *self._late]

    def check(self) -> None:
        """OverloadedError if there is no room for another, not even to wait."""
        if self.waiting < self._queue_size or (not self.waiting and self._has_room()):
            return
        self.rejected += 1
        raise OverloadedError(
            f"server is overloaded: {len(self.inside)} requests inside and "
            f"{self.waiting} waiting (queue_size); try again later."
        )

    def judge(self, time_left_s: float) -> None:
        """OverloadedError if a request that has so much time left cannot be answered in it."""
        throughput = self._throughput
        if throughput is None:
            throughput = self._throughput = Throughput()
            self.judges = True
        if not throughput.is_backed_up:
            return
        now = self._clock()
        throughput.passes(now)
        ahead = len(self.inside) + self.waiting
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

    @property
    def is_backed_up(self) -> bool:
        """Whether more waited, at the last look, than could be begun."""
        return self._throughput is not None and self._throughput.is_backed_up

    def look(self, is_backed_up: bool, turn_s: float) -> None:
        """Take down how the engine stands, when all was begun that can be.

        Args:
            is_backed_up: whether more wait, to be let in too.
            turn_s: what a turn at the slowest Op takes.
        """
        if self._throughput is not None:
            self._throughput.look(self._clock(), is_backed_up, turn_s)

    def take(self, request: RequestState) -> None:
        """Let a request in, or let it wait."""
        self.accepted += 1
        if not self.waiting and self._has_room():
            self._let_in(request)
        else:
            self._waiting[request] = None
            self._count()

    def leave(self, request: RequestState, is_served: bool) -> None:
        """Give the place of a request that is over to the next one that waits.

        `is_served`: it got its answer, be it an error, and did not just leave.
        """
        if is_served and self._throughput is not None:
            self._throughput.served()
        self.inside.discard(request)
        if self.waiting:
            self._waiting.pop(request, None)
            self._late.pop(request, None)
            self._count()
            self.let_in()

    def let_in(self) -> None:
        """Let in who waits, as far as there is room: the late ones last, and the newest first."""
        now = self._clock() if self.waiting else 0.0
        turn_s = self._throughput.turn_s if self._throughput is not None else 0.0
        while self.waiting and self._has_room():
            if not self._waiting:
                request = self._late.popitem()[0]
            else:
                request = next(iter(self._waiting))
                del self._waiting[request]
                if request.is_late(now, turn_s):
                    self._late[request] = None
                    continue
            self._count()
            self._let_in(request)

    def _count(self) -> None:
        self.waiting = len(self._waiting) + len(self._late)

    def _has_room(self) -> bool:
        return len(self.inside) < self._cap and self._is_open()

    def _let_in(self, request: RequestState) -> None:
        self.inside.add(request)
        self._enter(request)
