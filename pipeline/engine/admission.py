"""AdmissionController: bounds the requests in an engine's graph, and those that wait before it.

Who would wait for too long is refused, as by Facebook's and Envoy's admission control, see `judge`.
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

_DEFAULT_CAP = 256  # requests in the graph where neither worker_num nor the batches say more
_MOST_PARKED = 262_144  # requests of sequences that wait for others and take no place


def places_for(ops: Iterable[OpConfig]) -> int:
    """Return how many requests a graph of such Ops takes: for each worker a batch and the next."""
    most = sum(max(op.concurrency, op.max_workers or 0) * op.batch_size for op in ops)
    return max(_DEFAULT_CAP, 2 * most)


def without_places(nodes: Collection[OpNode], most: int) -> Callable[[], int]:
    """Return what counts those who take no place where nobody has said how many there are.

    They wait at an Op, be it for others of their sequence or, `most` of them, for workers: they
    must not keep out who never comes there.
    """

    def parked() -> int:
        ready = sum(len(node.scheduler) for node in nodes)
        return sum(node.waiting for node in nodes) - max(0, ready - most)

    return parked


class ActiveRequests(set[RequestState]):
    """Requests in the graph; `beside`: how many more they are, as some are several."""

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
        throughput: of requests that were answered while others waited to be admitted; None: nobody
            asks for it.
        is_open: whether any is admitted at all.
        is_full: whether the graph takes no more now, however few are in it.
        parked: how many of those in it wait at an Op and so take no place; None: never any.
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

    @property
    def room(self) -> int:
        """Return how many more may become active at once."""
        if self.queued or not self.is_open or (self.is_full is not None and self.is_full()):
            return 0
        return max(0, self._cap + self._parked() - self.inside)

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
        self.refuse(
            OverloadedError(
                f"server is overloaded: {self.inside} requests inside and "
                f"{self.queued} waiting (queue_size); try again later."
            )
        )

    def refuse(self, error: OverloadedError) -> NoReturn:
        """Send a request away. Raises `error`."""
        self.rejected += 1
        try:
            raise error
        finally:
            del error  # its traceback leads here: the request's body would be kept by a cycle

    def look(self) -> None:
        """Take down how it stands when all was begun that can be; admit who may be."""
        if self.throughput is not None and (self.queued or self.throughput.is_backed_up):
            self.throughput.look(self._clock(), self.queued > 0, 0.0)
        if self.queued:
            self.admit_queued()

    def submit(self, request: RequestState) -> None:
        """Admit a request, or let it wait."""
        self.accepted += request.count
        inside = len(self.active) + self.active.beside
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
        """Give the place of a request that is over to the next one that waits.

        `is_served`: it got its answer, be it an error, and did not just leave.
        """
        if is_served and self.throughput is not None:
            self.throughput.served()
        if request.count > 1 and request in self.active:
            self.active.beside -= request.count - 1
        self.active.discard(request)
        if self.queued:
            self._queue.pop(request, None)
            self._late.pop(request, None)
            self._count()
            self.admit_queued()

    def admit_queued(self) -> None:
        """Admit waiting requests while there is room: the late ones last, and the newest first.

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
            if request.is_late(self._clock()) and not request.info.sequence_id:
                self._late[request] = None
                return
        self._count()
        self._admit(request)

    def _admit(self, request: RequestState) -> None:
        self.active.add(request)
        if request.count > 1:
            self.active.beside += request.count - 1
        self._enter(request)

    def _count(self) -> None:
        self.queued = len(self._queue) + len(self._late)

    def _parked(self) -> int:
        return 0 if self.parked is None else min(self.parked(), _MOST_PARKED)

    def _has_room(self) -> bool:
        has_place = self.is_open and self.inside < self._cap + self._parked()
        return has_place and (self.is_full is None or not self.is_full())


class SharedQueue:
    """The queue before several graphs, each of which admits its own requests from it.

    Half of it is kept for them, in equal parts: one that is overloaded leaves the others theirs.

    Args:
        size: most that wait in all.
        graphs: how many there are.
    """

    def __init__(self, size: int, graphs: int) -> None:
        self._size = size
        self.kept: int = size // (2 * graphs)
        self.members: list[AdmissionController] = []

    def has_room(self) -> bool:
        """Return whether there is room beyond what is kept."""
        return sum(max(member.queued, self.kept) for member in self.members) < self._size


class SharingController(AdmissionController):
    """An AdmissionController whose requests wait in a queue that others share."""

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
        """Raise OverloadedError if there is no room for another beside those of all graphs."""
        if not self._shared.has_room():
            super().check()


def judge(request: RequestState, admission: AdmissionController, executor: Router) -> None:
    """Judge a request with a deadline by those that it would surely wait behind.

    Who is to be admitted waits behind all that are, and behind those that are unpacked or packed.
    Who waits at an Op is not before a request that may never come there: so it is judged here for
    the Op that it comes to first, whatever it holds, and by each other one when it is there.

    Raises:
        OverloadedError: it would wait for too long.
    """
    throughput = admission.throughput = admission.throughput or Throughput()
    now, error = request.asked_at, None
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
    """Return the Op that a request will come to, whatever it holds; None: that is not known."""
    target = request.target
    if target is not None and target.op is not None:
        node = executor.nodes[target.op]
    else:
        node = executor.entries[0]
        if executor.cached is not None or len(executor.entries) > 1 or node.channel.is_join:
            return None
    return None if node.may_spare else node
