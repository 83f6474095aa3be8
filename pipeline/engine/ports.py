"""Ports: what an Op's dispatcher is to those below it, and what it needs of those above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import field

from pipeline.engine.journal.spans import SpanRecorder
from pipeline.engine.op.channel import Channel, ChannelBound, Item
from pipeline.engine.op.filter import FilteredDispatcher
from pipeline.engine.op.worker_watch import WorkerWatch
from pipeline.engine.request import Recipient, RequestState, RequestTarget
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import Load, Scheduler
from pipeline.engine.shedding import Shedder
from pipeline.engine.state import EdgeState
from pipeline.engine.trips.pace import Pace
from pipeline.engine.trips.trip import Step, Trip
from pipeline.engine.worker_api import Loop, Worker, Workers
from pipeline.errors import PipelineError
from pipeline.op import Op


class TripStop(Protocol):
    """Something that a trip comes past: an Op, or the RequestOp or ResponseOp of a user."""

    op: Op
    name: str
    workers: Workers
    pace: Pace
    links: Links

    def enqueue(self, request: RequestState, slot: str, part: Any) -> None:
        """Take what came here, where the trip has ended before."""

    def count(self, run: Any) -> Any:
        """Take note that a step is a job of its worker from now on."""

    def route(self, request: RequestState, answer: Any) -> None:
        """Pass on what came of a request here, where the trip has ended with it."""


class PackStop(TripStop, Protocol):
    """A user's ResponseOp at the end of trips."""

    def step(self, items: Sequence[Item]) -> Any:
        """Return the job of the last answer of a trip, which is the only input of its item."""


class OpNode(Recipient, TripStop, FilteredDispatcher, Protocol):
    """The dispatcher of one Op."""

    channel: Channel
    scheduler: Scheduler
    load: Load
    shedder: Shedder
    room: ChannelBound
    spans: SpanRecorder
    watch: WorkerWatch
    streams: bool
    may_spare: bool

    @property
    def waiting(self) -> int: ...
    def enqueue_direct(self, request: RequestState, target: RequestTarget) -> None: ...
    def begin_lap(self, request: RequestState, again: Container[str] | None = None) -> None: ...
    def drop(self, request: RequestState) -> None: ...
    def release(self, run: BatchRun | Item) -> None: ...
    def pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None: ...
    def lost(self, job: BatchRun | Item | Trip, error: PipelineError) -> None: ...


Receiver = tuple[OpNode, tuple[OpNode, ...]]
"""An Op that gets an answer, and those that read the same and are entered with it."""


def alone(nodes: Iterable[OpNode]) -> tuple[Receiver, ...]:
    """Return receivers of which each is entered by itself."""
    return tuple((node, ()) for node in nodes)


class LoopEdge(msgspec.Struct, frozen=True, eq=False):
    """A way back from an Op to one that leads to it.

    Attributes:
        target: the Op that runs again, and gets the answer.
        below: what runs again after that.
        again: the names of all these.
    """

    target: OpNode
    below: tuple[OpNode, ...]
    again: frozenset[str]


class Links(msgspec.Struct, eq=False):
    """Neighbours of an Op: those that its answers lead to.

    Attributes:
        successors: those that read its answers.
        receivers: to whom they are handed: each with the others that are entered there with it.
        below: all that its answers lead to.
        targets: of its jumps.
        runs_again: what runs again after it jumped back.
        begins_laps: those of them that read no other Op.
        is_target: whether jumps are for it.
        loops: those of its `loop_to`, by the name of the Op that runs again.
        is_in_loop: whether one has it run again.
        answered: its answers so far, errors too.
        withheld: how many of them each successor did not get.
        taken: how many went each of the other `ways`.
        skipped: requests that came past it, for nothing came for it.
        opens_payloads: whether it has to open what it reads, for its workers cannot.
    """

    successors: tuple[OpNode, ...] = ()
    receivers: tuple[Receiver, ...] = ()
    below: frozenset[OpNode] = frozenset()
    targets: tuple[OpNode, ...] = ()
    runs_again: frozenset[OpNode] = frozenset()
    begins_laps: tuple[OpNode, ...] = ()
    is_target: bool = False
    loops: dict[str, LoopEdge] = {}
    is_in_loop: bool = False
    answered: int = 0
    withheld: Counter[OpNode] = field(default_factory=Counter)
    taken: Counter[OpNode] = field(default_factory=Counter)
    skipped: int = 0
    opens_payloads: bool = False

    @property
    def edges(self) -> list[EdgeState]:
        """Return who got how many of its answers."""
        back = [loop.target for loop in self.loops.values()]
        jumped = [reader for target in self.targets for reader in target.links.successors]
        edges = []
        for node in dict.fromkeys((*self.successors, *back, *jumped)):
            is_read = node in self.successors
            sent = self.taken[node] + (self.answered - self.withheld[node] if is_read else 0)
            edges.append(EdgeState(node.name, sent, max(0, self.answered - sent)))
        return edges


class CycleTrigger(Protocol):
    """Trigger of the Ops; see `executor.DispatchCycle`."""

    def mark_dirty(self, node: Recipient) -> None: ...
    def wake_at(self, node: Recipient, when: float | None) -> None: ...


class TripStarts(Protocol):
    """The trips that are under way; see `trips.Trips`."""

    def begin(self, leader: OpNode, runs: Sequence[BatchRun]) -> list[Any]: ...
    def begin_alone(self, leader: OpNode, run: Item) -> Trip | Item: ...
    def begin_before(self, unpacker: TripStop, job: Any, request: RequestState) -> Any: ...
    def done(self, worker: Worker | None, trip: Any) -> None: ...
    def lost(self, trip: Trip, error: PipelineError) -> None: ...
    def hung(self, node: OpNode) -> None: ...
    def changed(self) -> None: ...
    def has_trips(self, node: OpNode) -> bool: ...


class Router(Protocol):
    """Router of what comes of requests at Ops; see `executor.Executor`."""

    loop: Loop
    receivers: tuple[Receiver, ...]
    complete: Callable[[RequestState, Any], None]
    workers_changed: Callable[[], None]

    @property
    def cycle(self) -> CycleTrigger: ...
    @property
    def trips(self) -> TripStarts: ...
    @property
    def nodes(self) -> Mapping[Op, OpNode]: ...
    @property
    def entries(self) -> tuple[OpNode, ...]: ...
    @property
    def last(self) -> OpNode: ...
    @property
    def cached(self) -> object | None: ...
    def start(self, request: RequestState, payload: Any) -> None: ...
    def drop(self, request: RequestState) -> None: ...
    def route(
        self, source: OpNode, request: RequestState, answer: Any, jumped: bool = False
    ) -> None: ...
    def leave(self, step: Step, request: RequestState, answer: dict[str, Any]) -> None: ...
    def send(
        self,
        request: RequestState,
        receivers: Sequence[Receiver],
        producer: str,
        answer: Any,
        stand_in: str | None = None,
    ) -> None: ...
    def gone(self, item: Item) -> None: ...
