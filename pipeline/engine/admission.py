"""AdmissionController: limits the requests in an engine's graph, and in the queue before it.

A request that would wait for too long is refused, as in Facebook's and Envoy's admission control;
see `judge`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import NoReturn

from pipeline.config.schema import OpConfig
from pipeline.engine.ports import OpNode, Router
from pipeline.engine.request import QUEUED, RequestState
from pipeline.engine.shedding import Throughput, too_late
from pipeline.errors import OverloadedError

_DEFAULT_CAP = 256  # requests in the graph if neither the workers nor the batches need more
_MOST_PARKED = 262_144  # requests of sequences that wait for others and take no place


def places_for(ops: Iterable[OpConfig]) -> int:
    """Return how many requests a graph of such Ops admits: for each worker two batches."""
    most = sum(max(op.concurrency, op.max_workers or 0) * op.batch_size for op in ops)
    return max(_DEFAULT_CAP, 2 * most)


def without_places(nodes: Collection[OpNode], most: int) -> Callable[[], int]:
    """Return a function that counts the requests that take no place, if `max_active` is not set.

    They wait at an Op for others of their sequence or, up to `most`, for workers. If they took
    places, they would keep out requests that never come to that Op.
    """

    def parked() -> int:
        ready = sum(len(node.scheduler) for node in nodes)
        return sum(node.waiting for node in nodes) - max(0, ready - most)

    return parked


class ActiveRequests(set[RequestState]):
    """Requests in the graph. `extra`: how many further requests the convoys among them hold."""

    extra: int = 0


class AdmissionController:
    """Admits requests to the graph in order of arrival.

    Args:
        cap: at most this many requests are in the graph.
        enter: takes an admitted request.
        clock: the time in seconds, on the clock of the deadlines.

    Attributes:
        queue_size: at most this many requests wait.
        active: requests in the graph, or whose answers are being packed.
        queued: number of requests that wait to be admitted.
        accepted: number of requests that were admitted or queued.
        rejected: number of requests that were refused.
        throughput: of requests that were answered while others waited to be admitted; None: no
            request has had a deadline.
        is_open: whether any request is admitted.
        is_full: whether the graph accepts no more requests now, even below the cap.
        parked: how many active requests wait at an Op and so take no place; None: zero.
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
        return len(self.active) + self.active.extra

    def room(self, most: int) -> int:
        """Return how many more requests, up to `most`, could become active now."""
        if self.queued or not self.is_open or (self.is_full is not None and self.is_full()):
            return 0
        room = self._cap - self.inside
        return min(most, room if room >= most else max(0, room + self._parked()))

    @property
    def is_empty(self) -> bool:
        """Return whether every request has been answered."""
        return not self.active and not self.queued

    def all_requests(self) -> Iterable[RequestState]:
        """Return a new list of all requests that are not answered."""
        return [*self.active, *self._queue, *self._late]

    def check(self) -> None:
        """Raise OverloadedError if the queue is full and no place is free."""
        if not self.queued and self._has_room():
            return
        self.refuse(
            OverloadedError(
                f"server is overloaded: {self.inside} requests inside and "
                f"{self.queued} waiting (queue_size); try again later."
            )
        )

    def refuse(self, error: OverloadedError) -> NoReturn:
        """Count a refused request and raise `error`."""
        self.rejected += 1
        try:
            raise error
        finally:
            del error  # its traceback leads here: the cycle would keep the request's body

    def look(self) -> None:
        """Measure the throughput and admit waiting requests, after each dispatch cycle."""
        if self.throughput is not None and (self.queued or self.throughput.is_backed_up):
            self.throughput.look(self._clock(), self.queued > 0, 0.0)
        if self.queued:
            self.admit_queued()

    def submit(self, request: RequestState) -> None:
        """Admit a request, or let it wait."""
        self.accepted += request.count
        inside = len(self.active) + self.active.extra
        has_place = self.is_open and not self.queued and inside < self._cap
        if has_place and (self.is_full is None or not self.is_full()):
            self._admit(request)
        else:
            request.advance(QUEUED)
            self._queue[request] = None
            self._count()
            if self.parked is not None:
                self.admit_queued()

    def release(self, request: RequestState, is_served: bool) -> None:
        """Give the place of a request that has ended to the next that waits.

        `is_served`: the request got an answer or an error; its client did not leave before.
        """
        if is_served and self.throughput is not None:
            self.throughput.served()
        if request.count > 1 and request in self.active:
            self.active.extra -= request.count - 1
        self.active.discard(request)
        if self.queued:
            self._queue.pop(request, None)
            self._late.pop(request, None)
            self._count()
            self.admit_queued()

    def admit_queued(self) -> None:
        """Admit waiting requests while there is room; late requests last, the newest of them first.

        Requests of sequences keep their order. A request that is refused at once makes room for the
        next; the loop here handles that, so that calls do not nest.
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
            if request.is_late(self._clock()) and not request.info.sequence_id:
                self._late[request] = None
                return
        self._count()
        self._admit(request)

    def _admit(self, request: RequestState) -> None:
        self.active.add(request)
        if request.count > 1:
            self.active.extra += request.count - 1
        self._enter(request)

    def _count(self) -> None:
        self.queued = len(self._queue) + len(self._late)

    def _parked(self) -> int:
        return 0 if self.parked is None else min(self.parked(), _MOST_PARKED)

    def _has_room(self) -> bool:
        has_place = self.is_open and self.inside < self._cap + self._parked()
        return has_place and (self.is_full is None or not self.is_full())


class SharedQueue:
    """The queue of several graphs, each of which admits its own requests from it.

    Half of it is reserved, in equal parts: an overloaded graph leaves the other graphs their part.

    Args:
        size: at most this many requests wait in all.
        graphs: number of graphs.
    """

    def __init__(self, size: int, graphs: int) -> None:
        self._size = size
        self.kept: int = size // (2 * graphs)
        self.members: list[AdmissionController] = []

    def has_room(self) -> bool:
        """Return whether there is room beyond the reserved parts."""
        return sum(max(member.queued, self.kept) for member in self.members) < self._size


class SharingController(AdmissionController):
    """An AdmissionController whose requests wait in a queue that other graphs share."""

    def __init__(
        self,
        cap: int,
        queue: SharedQueue,
        enter: Callable[[RequestState], None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(cap, queue.kept, enter, clock)
        self._shared = queue
        queue.members.append(self)

    def check(self) -> None:
        """Raise OverloadedError if the shared queue and the graph's own part are full."""
        if not self._shared.has_room():
            super().check()


def judge(request: RequestState, admission: AdmissionController, executor: Router) -> None:
    """Judge a request with a deadline by the requests that certainly come before it.

    A request that waits for admission comes after all others in the queue, and after the active
    requests that are being unpacked or packed. Requests that wait at an Op do not count here,
    because this one may never come to that Op. It is also judged for the first Op that it certainly
    reaches, and by each other Op on arrival.

    Raises:
        OverloadedError: it would wait for too long.
    """
    throughput = admission.throughput = admission.throughput or Throughput()
    now, error = request.arrived_at, None
    if admission.queued and throughput.is_backed_up:
        throughput.passes(now)
        at_ops = sum(node.waiting for node in executor.nodes.values())
        ahead = admission.queued + max(0, admission.inside - at_ops)
        error = too_late(OverloadedError, throughput, request, now, ahead)
    first = _first_of(request, executor)
    if error is None and first is not None:
        error = first.shedder.refusal(request, now, admission.queued)
        request.judged_by = first.shedder
    if error is not None:
        admission.refuse(OverloadedError(str(error), error.retry_after_s))


def _first_of(request: RequestState, executor: Router) -> OpNode | None:
    """Return the Op that a request reaches first whatever its content; None: unknown."""
    target = request.target
    if target is not None and target.op is not None:
        node = executor.nodes[target.op]
    else:
        node = executor.entries[0]
        if executor.cached is not None or len(executor.entries) > 1 or node.channel.is_join:
            return None
    return None if node.may_spare else node
