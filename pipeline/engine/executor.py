"""Executor: routes answers along the edges of a graph, to the Ops that read them or out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.config.schema import DagConfig
from pipeline.engine.admission import AdmissionController
from pipeline.engine.convoy_way import ConvoyPath, convoy_filter
from pipeline.engine.detours import Detours, link
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import EngineObservers
from pipeline.engine.op.cache import CachedGraph
from pipeline.engine.op.channel import Item, own_dict
from pipeline.engine.op.dispatcher import OpDispatcher, direct_item
from pipeline.engine.op.filter import surround
from pipeline.engine.op.order import OrderFilter
from pipeline.engine.ports import OpNode, Receiver, alone
from pipeline.engine.request import Recipient, RequestState
from pipeline.engine.run.payload import LOCAL, Absent, MemoryDomain
from pipeline.engine.run.stage_errors import unsendable
from pipeline.engine.sequences.filter import SequenceFilter, check_sequences
from pipeline.engine.sequences.scheduler import SequenceScheduler
from pipeline.engine.streams.delivery import StreamDelivery
from pipeline.engine.streams.dispatcher import StreamDispatcher
from pipeline.engine.streams.iterative import IterativeDispatcher
from pipeline.engine.streams.plan import StreamPlan, is_iterative
from pipeline.engine.trips.trip import Step
from pipeline.engine.trips.trips import Trips
from pipeline.engine.worker_api import Loop, WorkersFactory
from pipeline.errors import GraphError, PipelineError, note_op
from pipeline.op import EXECUTOR_NAME, Op
from pipeline.routes import Answer, Goto

_IDLE = 2  # at most this many requests in the graph
_WAITS_IN_VAIN = (
    "the request got lost in the graph: an Op waits for an answer that will not come. Check "
    "jump_to_ops and loop_to."
)


class DispatchCycle:
    """Lets the Ops that have news cut their batches, all in one round of the event loop.

    At the end of each round `admission` may admit further requests.
    """

    def __init__(self, loop: Loop, admission: AdmissionController) -> None:
        self.nodes: tuple[OpDispatcher, ...] = ()
        self._loop = loop
        self._admission = admission
        self._dirty: list[Recipient] = []
        self._timers: dict[Recipient, asyncio.TimerHandle] = {}
        self._is_due = False
        self._handle: asyncio.Handle | None = None  # of the next run

    def is_idle(self) -> bool:
        """Return whether the graph has at most two requests."""
        return self._admission.inside <= _IDLE

    def mark_dirty(self, node: Recipient) -> None:
        """Have `node.schedule` called in this round of the loop."""
        if not node.is_dirty:
            node.is_dirty = True
            self._dirty.append(node)
        if not self._is_due:
            self._is_due = True
            self._handle = self._loop.call_soon(self.run)

    def wake_at(self, node: Recipient, when: float | None) -> None:
        """Have `node.schedule` called at that time only; None: cancel the timer."""
        if (timer := self._timers.pop(node, None)) is not None:
            timer.cancel()
        if when is not None:
            self._timers[node] = self._loop.call_at(when, self.mark_dirty, node)

    def run(self) -> None:
        """Let every Op that was marked cut its batches."""
        admission = self._admission
        if not self._dirty and admission.throughput is None and not admission.queued:
            return
        if self._handle is not None:  # this is that run, or one before it
            self._handle.cancel()
            self._handle = None
        self._is_due = True  # an Op that is marked below is served in this call
        while self._dirty:
            nodes, self._dirty = self._dirty, []
            turns = iter(nodes)
            try:
                for node in turns:
                    node.schedule()
            # a defect, for example of a user's scheduler, must not stop the other Ops
            except BaseException:
                self._dirty += turns
                self._is_due = False
                for node in self._dirty[:1]:
                    self.mark_dirty(node)
                raise
        self._is_due = False
        admission.look()


class Executor:
    """Router of requests into a graph, and of the answers of all its Ops.

    Errors take the same edges as answers, so that a join knows all its parts and a first-arrival
    join can take another one. So does an `Absent`, which replaces an answer that went elsewhere
    (see `Detours`).

    Args:
        graph: a checked graph, whose Ops are configured.
        cycle: lets the Ops cut batches.
        complete: takes the answer of a request, or the error in its place.
        workers_changed: called when an Op lost a worker, or has a new one.
        dag: the settings that all Ops share.
        streams: the graph's streams; None: it has none.

    Attributes:
        cycle: as given.
        nodes: the dispatchers of the Ops, in the order of the graph.
        entries: the dispatchers that read the request.
        last: the dispatcher whose answer is the answer of the request.
        receivers: the Ops that a new request is sent to; see `Links.receivers`.
        joins: the dispatchers that read several Ops.
        complete: as given.
        delivery: takes the parts of answers; None: there are no streams.
        cached: looks up answers of the whole graph; None: they are not kept.
        convoys: decides which convoys may pass; set by the engine.
        hides_errors: clients get a fixed sentence instead of internal errors; set by the engine.
    """

    convoys: ConvoyPath
    hides_errors: bool = False

    def __init__(
        self,
        graph: Graph,
        make_workers: WorkersFactory,
        loop: Loop,
        cycle: DispatchCycle,
        complete: Callable[[RequestState, Any], None],
        workers_changed: Callable[[], None],
        observers: EngineObservers,
        dag: DagConfig,
        streams: StreamPlan | None = None,
    ) -> None:
        self.cycle: DispatchCycle = cycle
        self.workers_changed: Callable[[], None] = workers_changed
        self.complete: Callable[[RequestState, Any], None] = complete
        self._clock_ns = observers.clock_ns
        self.loop: Loop = loop
        self.delivery: StreamDelivery | None = None
        self.cached: CachedGraph | None = None
        self.nodes: dict[Op, OpDispatcher] = {}
        for index, op in enumerate(graph.ops):
            arguments = op, make_workers, self, loop, index, observers, dag.channel_size
            if streams is not None and streams.has(op):
                make = IterativeDispatcher if is_iterative(op) else StreamDispatcher
                self.nodes[op] = self._with_order(make(streams, dag.stream_window, *arguments))
            else:
                self.nodes[op] = self._with_extras(OpDispatcher(*arguments))
        nodes = cycle.nodes = tuple(self.nodes.values())
        link(self.nodes, graph.successors)
        check_sequences(nodes)
        self.entries: tuple[OpDispatcher, ...] = tuple(
            self.nodes[op] for op in graph.successors(graph.request_op)
        )
        self.receivers: tuple[Receiver, ...] = alone(self.entries)
        self.last: OpDispatcher = self.nodes[graph.last_op]
        self.trips: Trips = Trips(self, loop, self._clock_ns, dag.fuse == "auto", cycle.is_idle)
        self._detours = Detours(self)
        self.joins: tuple[OpDispatcher, ...] = tuple(node for node in nodes if node.channel.is_join)
        self._is_shared = self.memory is not LOCAL

    def _with_order(self, node: OpDispatcher) -> OpDispatcher:
        """Add what an Op with sequences needs."""
        scheduler = node.scheduler
        if isinstance(scheduler, SequenceScheduler):
            surround(node, SequenceFilter(node, scheduler, self.loop, self.cycle.mark_dirty))
        return node

    def _with_extras(self, node: OpDispatcher) -> OpDispatcher:
        """Add the filters that an Op's configuration and its scheduler need."""
        config = node.op.pipeline_config
        self._with_order(node)
        convoys = convoy_filter(node)
        if convoys is not None:
            surround(node, convoys)
        if config.dynamic_batching.preserve_ordering and config.concurrency > 1:
            surround(node, OrderFilter())
        return node

    def is_decoupled(self, op: Op | None = None) -> bool:
        """Return whether requests for an Op (None: for the pipeline) are answered in parts."""
        return self.delivery is not None and self.delivery.is_decoupled(op)

    def is_full(self) -> bool:
        """Return whether one of the first Ops accepts no more requests."""
        return any(node.room.is_full for node in self.entries)

    # In -------------------------------------------------------------------------------------

    def start(self, request: RequestState, payload: Any) -> None:
        """Send a request into the graph, or to its only Op."""
        request.dispatched_ns = request.passed_ns or self._clock_ns()
        target = request.target
        if target is not None and target.op is not None:
            node = self.nodes[target.op]
            node.add(direct_item(node, request, target))
        else:
            self.send(request, self.receivers, EXECUTOR_NAME, payload)

    def start_over(self, request: RequestState, payload: Any) -> None:
        """Start a request again; answers of its first start are dropped."""
        request.generation += 1
        request.live = 0 if request.stream is None else request.stream.restart()
        request.detours = None
        request.input_ns = request.infer_ns = request.output_ns = 0
        self.drop(request)
        self.start(request, payload)

    def drop(self, request: RequestState) -> None:
        """Drop the items of a request that has ended or starts again."""
        for node in self.nodes.values():
            node.drop(request)

    @property
    def memory(self) -> MemoryDomain:
        """Return the memory that process workers read; LOCAL: there are none."""
        domains = (node.workers.memory_domain for node in self.nodes.values())
        return next((domain for domain in domains if domain is not LOCAL), LOCAL)

    @property
    def reads_views(self) -> bool:
        """Return whether the first Ops get `bytes` for a view, and nothing reads it before."""
        return self.cached is None and all(
            node.workers.memory_domain is self.memory is not LOCAL and not node.filters
            for node in self.entries
        )

    # Through --------------------------------------------------------------------------------

    def route(
        self, source: OpNode, request: RequestState, answer: Any, jumped: bool = False
    ) -> None:
        """Pass on the answer of an Op for a request that is active.

        `answer` is a payload, perhaps in a Goto or Answer, or an Absent or PipelineError.
        """
        links, target = source.links, request.target
        is_for_all = target is None or target.op is None
        if type(answer) is dict and is_for_all and not (jumped or links.is_target):
            if source is self.last:  # the common case
                self.complete(request, answer)
            else:
                self.send(request, links.receivers, source.name, answer)
            return
        note_op(answer, source.name)
        if request.convoy is not None:
            request.convoy.note_failures(answer, source.name)
        if isinstance(answer, Answer):
            links.withheld.update(links.successors)
            request.head = answer.head
            self.complete(request, answer.answer)
        elif not is_for_all:
            links.withheld.update(links.successors)
            self.complete(request, answer.answer if isinstance(answer, Goto) else answer)
        elif links.is_target and source in request.detoured().settled:
            return  # a jump has answered for it
        elif isinstance(answer, Goto):
            self._detours.goto(source, request, answer)
        elif jumped and not isinstance(answer, PipelineError):
            self._detours.jump(source, request, answer)
        elif source is self.last:
            self.complete(request, answer.at_the_end() if type(answer) is Absent else answer)
        else:
            if links.is_target:
                request.detoured().settled.add(source)
            if isinstance(answer, PipelineError | Absent):
                self._detours.pass_on(request, alone(links.successors), source.name, answer)
            else:
                self.send(request, links.receivers, source.name, answer)

    def leave(self, step: Step, request: RequestState, answer: dict[str, Any]) -> None:
        """Pass on the answer of a step of a trip to the Ops outside the trip."""
        if step.node is self.last:
            self.complete(request, answer)
        else:
            self.send(request, step.outside, step.name, answer)

    def send(
        self,
        request: RequestState,
        receivers: Sequence[Receiver],
        producer: str,
        answer: Any,
        stand_in: str | None = None,
    ) -> None:
        """Send `answer` to all receivers. Each gets its own dict; the values are shared."""
        if len(receivers) == 1:
            ((reader, entered),) = receivers
            reader.enqueue(request, producer, answer, stand_in, entered)
            return
        generation = request.generation
        if self._is_shared and isinstance(answer, dict):
            answer = _serialized_once(receivers, producer, answer)
        request.live += 1  # the first receiver may answer at once, and is not the only one
        for place, (reader, entered) in enumerate(receivers):
            if request.generation == generation:  # neither ended nor started again
                own = own_dict(answer) if place else answer
                reader.enqueue(request, producer, own, stand_in, entered)
        if request.generation == generation:
            request.live -= 1
            if not request.live:
                self.fail_unreachable(request)

    def item_done(self, item: Item) -> None:
        """Note that an Op, or a trip, is done with an item, unless the request has ended."""
        request = item.request
        if item.generation != request.generation:  # answered, or started again
            return
        request.live -= 1
        if not request.live:
            self.fail_unreachable(request)

    def fail_unreachable(self, request: RequestState) -> None:
        """End an unanswered request that no Op processes any more."""
        held = (node.channel.held_error(request) for node in self.joins)
        self.complete(request, next(filter(None, held), None) or GraphError(_WAITS_IN_VAIN))


def _serialized_once(receivers: Sequence[Receiver], producer: str, answer: dict[str, Any]) -> Any:
    """Return one Payload if all readers share a memory domain, so that large values are copied
    once.
    """
    domain = receivers[0][0].workers.memory_domain
    if any(reader.workers.memory_domain is not domain for reader, _ in receivers):
        return answer
    try:
        return domain.serialize(answer)
    except PipelineError as error:
        return unsendable(error, producer)
