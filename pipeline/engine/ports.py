"""Ports: what a dispatcher offers to the layers below it, and what it needs from above."""

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
from pipeline.engine.request import Recipient, RequestState
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
    """A step of a trip: an Op, or the user's RequestOp or ResponseOp."""

    op: Op
    name: str
    workers: Workers
    pace: Pace
    links: Links

    def enqueue(self, request: RequestState, slot: str, part: Any) -> None:
        """Take the answer of the step before, if the trip ended there."""

    def count(self, run: Any) -> Any:
        """Note that a worker runs this step from now on."""

    def route(self, request: RequestState, answer: Any) -> None:
        """Pass on the answer of this step, if the trip ended with it."""


class PackStop(TripStop, Protocol):
    """A user's ResponseOp at the end of trips."""

    def step(self, items: Sequence[Item]) -> Any:
        """Return the job for the last answer of a trip, which is the only input of its item."""


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
    def begin_lap(self, request: RequestState, again: Container[str] | None = None) -> None: ...
    def drop(self, request: RequestState) -> None: ...
    def release(self, run: BatchRun | Item) -> None: ...
    def pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None: ...
    def lost(self, job: BatchRun | Item | Trip, error: PipelineError) -> None: ...


Receiver = tuple[OpNode, tuple[OpNode, ...]]
"""An Op that gets an answer, and the Ops that read the same answer and are entered together with
it."""


def alone(nodes: Iterable[OpNode]) -> tuple[Receiver, ...]:
    """Return a receiver for each node, entered alone."""
    return tuple((node, ()) for node in nodes)


class LoopEdge(msgspec.Struct, frozen=True, eq=False):
    """An edge back from an Op to an Op before it.

    Attributes:
        target: the Op that runs again, and gets the answer.
        below: the Ops that run again after it.
        again: the names of all these.
    """

    target: OpNode
    below: tuple[OpNode, ...]
    again: frozenset[str]


class Links(msgspec.Struct, eq=False):
    """The neighbours of an Op in the graph.

    Attributes:
        successors: the Ops that read its answers.
        receivers: the successors to send answers to, each with the Ops that are entered with it.
        below: all Ops that its answers lead to.
        targets: targets of its jumps.
        runs_again: the Ops that run again after it jumped back.
        begins_laps: those Ops of `runs_again` that read no other Op.
        is_target: whether another Op jumps to it.
        loops: the edges of its `loop_to`, by the name of the Op that runs again.
        is_in_loop: whether a loop makes it run again.
        answered: the number of its answers, errors included.
        withheld: how many answers each successor did not get.
        taken: how many answers went along each loop and jump.
        skipped: the number of requests that skipped it, because no answer came for it.
        opens_payloads: whether the server opens its inputs, because its workers cannot.
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
        """Return how many of its answers each Op got."""
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
    """The running trips; see `trips.Trips`."""

    def begin(self, leader: OpNode, runs: Sequence[BatchRun]) -> list[Any]: ...
    def begin_alone(self, leader: OpNode, run: Item) -> Trip | Item: ...
    def begin_before(self, unpacker: TripStop, job: Any, request: RequestState) -> Any: ...
    def done(self, worker: Worker | None, trip: Any) -> None: ...
    def lost(self, trip: Trip, error: PipelineError) -> None: ...
    def hung(self, node: OpNode) -> None: ...
    def changed(self) -> None: ...
    def has_trips(self, node: OpNode) -> bool: ...


class Router(Protocol):
    """Router of answers; see `executor.Executor`."""

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
    def item_done(self, item: Item) -> None: ...
