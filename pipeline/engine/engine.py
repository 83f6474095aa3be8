"""Engine: accepts requests, runs them through the graph, and ends each exactly once."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.config.schema import ServiceConfig
from pipeline.engine.admission import (
    AdmissionController,
    SharedQueue,
    SharingController,
    judge,
    places_for,
    without_places,
)
from pipeline.engine.answers import channel_data, refusal, withheld
from pipeline.engine.convoy_way import ConvoyPath
from pipeline.engine.executor import DispatchCycle, Executor
from pipeline.engine.filters import (
    Deadline,
    Filter,
    FilterChain,
    ProfileFilter,
    RequestRetry,
    Trace,
)
from pipeline.engine.graph import Graph
from pipeline.engine.journal.journal import (
    FROM_OUTSIDE,
    PIPELINE,
    EngineObservers,
    Outcome,
    outcome_of,
)
from pipeline.engine.op.cache import CachedGraph, ModelCache
from pipeline.engine.pack_jobs import Packer, PackJob, Unpacker
from pipeline.engine.request import (
    ACTIVE,
    ENDED,
    LAST_ID,
    PACKING,
    RequestState,
    RequestTarget,
    ResponseSink,
    ask,
)
from pipeline.engine.run.payload import opened
from pipeline.engine.schema_checks import completing, delivery_of, unpacker_of
from pipeline.engine.sequences.filter import orders_of
from pipeline.engine.state import EngineState
from pipeline.engine.stored_inputs import StoredInputs
from pipeline.engine.streams.delivery import RequestEnds
from pipeline.engine.streams.plan import plan_streams
from pipeline.engine.trips.trips import Trips
from pipeline.engine.worker_api import WorkersFactory
from pipeline.errors import (
    ClosedError,
    InitError,
    OverloadedError,
    PipelineError,
    UserCodeError,
    described,
    error_from_wire,
)
from pipeline.op import Op
from pipeline.predictors.base import ModelMetadata
from pipeline.proto.pipeline.plain import PlainResponse
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.system.startup_log import log_slow_starts

_LOGGER = logging.getLogger(__name__)
_JOIN_TIMEOUT_S = 5.0


def join_trips(
    unpacker: Unpacker, packer: Packer, trips: Trips, filters: FilterChain, stored: object
) -> None:
    """Make the user's unpack and pack steps of trips, if nothing runs between them and the Ops."""
    is_alone = stored is None and filters.looks_in_any_thread and type(unpacker) is Unpacker
    if is_alone and not unpacker.is_inline:
        unpacker.trips, unpacker.looks = trips, filters.on_input
    if not packer.is_inline:
        packer.trips = trips
    trips.groups.end_at(unpacker if unpacker.trips else None, packer if packer.trips else None)


class Engine:
    """Server of a graph. Everything except the workers runs on one event loop.

    Args:
        graph: a checked graph, whose Ops are configured.
        make_workers: makes an Op's workers; its argument is a callback that has the Ops cut
            batches.
        filters: of the server and of its user; the engine's own filters run after them.
        on_readiness: called on the loop when `is_ready` changes.
        numbering: the first data id, and the step from one to the next.
        cache: keeps the answers of Ops and graphs that want it; None: nothing is kept.
        stored: fetches inputs that requests refer to; None: requests hold all of their inputs.
        queue: a queue that several graphs share; None: the engine has a queue of its own.

    Attributes:
        executor: routes answers along the edges of the graph.
    """

    def __init__(
        self,
        graph: Graph,
        config: ServiceConfig,
        make_workers: Callable[[Callable[[], None]], WorkersFactory],
        loop: asyncio.AbstractEventLoop,
        observers: EngineObservers | None = None,
        filters: Sequence[Filter] = (),
        on_readiness: Callable[[bool], None] = lambda is_ready: None,
        numbering: tuple[int, int] = (0, 1),
        cache: ModelCache | None = None,
        stored: StoredInputs | None = None,
        queue: SharedQueue | None = None,
    ) -> None:
        self._loop = loop
        self._observers = observers = observers or EngineObservers()
        self._clock_ns = observers.clock_ns
        cap = config.max_active or places_for(op.pipeline_config for op in graph.ops)
        if queue is None:
            self._admission = AdmissionController(cap, config.queue_size, self._enter, loop.time)
        else:
            self._admission = SharingController(cap, queue, self._enter, loop.time)
        cycle = DispatchCycle(loop, self._admission)
        factory = make_workers(cycle.run)
        streams = plan_streams(graph)
        complete = completing(graph.response_op, self._complete, lambda: self._packer)
        cached = None
        if cache is not None and config.response_cache:
            cached = CachedGraph(complete, observers.clock_ns)
            complete = cached.complete
        own = graph, factory, loop, cycle, complete, self.workers_changed, observers
        self.executor: Executor = Executor(*own, config.dag, streams)
        self.executor.hides_errors = config.hides_errors
        if cache is not None:
            self.executor.cached = cached
            cache.open(cached, self.executor, observers)
        if config.dag.channel_size > 0:
            self._admission.is_full = self.executor.is_full
        into = stored.bound(self._dispatch, complete) if stored else self._dispatch
        self._unpacker = unpacker_of(graph.request_op, factory, into, complete)
        if graph.request_op.pipeline_schema is None and not config.filters:
            self._unpacker.keeps_views = lambda: self.executor.reads_views
        self._packer = Packer(
            graph.response_op, factory, self._answer, config.limits, self._complete
        )
        ends = RequestEnds(complete, self._answer, self._end, self._end_now, lambda: self._filters)
        self.executor.delivery = delivery_of(
            graph.response_op, streams, config, self.executor, self._packer, loop, observers, ends
        )
        self._filters = chain = FilterChain(self._own_filters(config), filters)
        self.executor.convoys = ConvoyPath(self.executor, self._admission, chain, config, stored)
        if complete == self._complete and streams is None:
            join_trips(self._unpacker, self._packer, self.executor.trips, chain, stored)
        self._on_readiness = on_readiness
        self._ids = itertools.count(*numbering)
        self._was_ready = self._is_leaving = self._is_closing = False
        self._init_error = ""
        self._all_answered = asyncio.Event()

    def _own_filters(self, config: ServiceConfig) -> list[Filter]:
        deadline = Deadline(
            config.timeout_s,
            self._loop,
            lambda request: judge(request, self._admission, self.executor),
            self._end_now,
        )
        orders = orders_of(self.executor.nodes, self._admission)
        if config.max_active is None:
            nodes = self.executor.nodes.values()
            self._admission.parked = without_places(nodes, config.queue_size)
        executor, observers = self.executor, self._observers
        candidates = (deadline, executor.delivery, executor.cached)
        filters: list[Filter] = [own_filter for own_filter in candidates if own_filter is not None]
        if observers.begin_trace is not None:
            filters.append(Trace(observers.begin_trace))
        if observers.profile is not None:
            filters.append(ProfileFilter(observers.profile, observers.clock_ns))
        if config.dag.retry > 1:
            filters.append(RequestRetry(config.dag.retry, executor.start_over))
        return filters + orders

    # Life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Initialise every Op and start its workers; InitError names the Op that failed."""
        nodes = self.executor.nodes.values()
        pools = {f"Op {node.name!r}": node.workers for node in nodes}
        pools |= {"RequestOp": self._unpacker.workers, "ResponseOp": self._packer.workers}
        try:
            starts = {name: pool.start() for name, pool in pools.items()}
            await log_slow_starts(starts, self._loop)
        except ExceptionGroup as failures:
            failure = failures.exceptions[0]
            self._init_error = str(failure).partition("\n")[0]  # without the traceback
            await self.stop(0.0)
            raise failure from None
        self._admission.is_open = True
        self.workers_changed()
        self._admission.admit_queued()

    @property
    def is_ready(self) -> bool:
        """Return whether every worker of every Op takes work."""
        return (
            self._admission.is_open
            and not self._is_leaving
            and all(node.workers.is_ready for node in self.executor.nodes.values())
        )

    def workers_changed(self) -> None:
        """Call `on_readiness` if `is_ready` has changed: an Op lost a worker, or has a new one."""
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            self._on_readiness(self._was_ready)

    @property
    def hides_errors(self) -> bool:
        """Return whether clients get a fixed sentence instead of the text of internal errors."""
        return self.executor.hides_errors

    @property
    def inside(self) -> int:
        """Return how many requests are in the graph."""
        return self._admission.inside

    @property
    def waiting(self) -> int:
        """Return how many requests wait to be admitted to the graph."""
        return self._admission.queued

    def state(self) -> EngineState:
        """Return the current state."""
        groups = self.executor.trips.groups.names()
        return EngineState(
            is_ready=self.is_ready,
            inside=self.inside,
            waiting=self.waiting,
            accepted=self._admission.accepted,
            rejected=self._admission.rejected,
            ops=[node.state(groups.get(node.name, ())) for node in self.executor.nodes.values()],
        )

    def note(self, op: Op) -> ModelMetadata | None:
        """Return the metadata of an Op's model; None: it has none, or has not loaded it."""
        return self.executor.nodes[op].workers.note

    def leave(self) -> None:
        """Report "not ready" from now on; continue to serve."""
        self._is_leaving = True
        self.workers_changed()

    async def stop(self, grace_s: float) -> int:
        """Refuse new requests, let the others finish, answer the rest with an error after
        `grace_s`.

        If the workers never started, requests are answered at once. Returns the number of worker
        threads that did not end.
        """
        self._is_closing = True
        self.leave()
        if not self._admission.is_empty:
            try:
                await asyncio.wait_for(
                    self._all_answered.wait(), grace_s if self._admission.is_open else 0.0
                )
            except TimeoutError:
                self.answer_all_closed()
        nodes = self.executor.nodes.values()
        self.executor.trips.close()
        for node in nodes:
            node.close()
        pools = [*(node.workers for node in nodes), self._unpacker.workers, self._packer.workers]
        return sum(await asyncio.gather(*(pool.stop(_JOIN_TIMEOUT_S) for pool in pools)))

    def answer_all_closed(self) -> None:
        """Answer all requests at once; this ends the grace period of a running `stop`."""
        for request in self._admission.all_requests():
            self._end_now(request, self._closed_error())

    def _closed_error(self) -> PipelineError:
        if self._init_error:  # the request came before the Ops were initialised
            return InitError(f"pipeline server init error: {self._init_error}")
        return ClosedError("dag closed.")

    # In -------------------------------------------------------------------------------------

    def begin(
        self,
        raw: Any,
        timeout_s: float | None,
        target: RequestTarget | None,
        sink: ResponseSink,
    ) -> RequestState:
        """Accept a request; this is the only entry for all frontends.

        Args:
            raw: the argument of `RequestOp.unpack_request_package`.
            timeout_s: the client's deadline, from now; the service's deadline applies as well.
            target: for a request that does not enter by the RequestOp and leave by the ResponseOp.
            sink: gets the result of `ResponseOp.pack_response_package`, also for errors; or the
                ChannelData if the target says so.

        Returns:
            the request; cancel it if the client leaves.

        Raises:
            OverloadedError: the graph and the queue are full, or the request cannot be answered
                before
                its deadline. The sink gets nothing.
        """
        data_id = next(self._ids) % LAST_ID
        request = RequestState(raw, sink, self, data_id, self._clock_ns(), target, timeout_s)
        if target is not None:
            request.rows = target.rows
            if target.ready_ns:
                request.start_ns = target.ready_ns
            if target.info is not None:
                request.info = target.info
            if target.convoy is not None:
                target.convoy.enter(request, self._ids, self.executor.convoys.forget)
            if target.collector is not None:
                target.collector.attach(request)
        try:
            if self._is_closing:
                raise self._closed_error()
            for look in self._filters.on_request:
                look(request)
        except OverloadedError:
            raise
        except PipelineError as error:
            self._refuse(request, error)
            return request
        except Exception as error:
            _LOGGER.exception("a filter failed")
            self._refuse(request, UserCodeError(f"a filter failed: {described(error)}"))
            return request
        if self._admission.queued >= self._admission.queue_size:
            self._admission.check()
        for prepare in self._filters.on_admission:
            prepare(request)
        self._admission.submit(request)
        return request

    async def handle(
        self, raw: Any, timeout_s: float | None = None, target: RequestTarget | None = None
    ) -> Any:
        """Return the answer of a request; for tests and embedding."""
        return await ask(self.begin, raw, timeout_s, target, self._loop)

    def cancel(self, request: RequestState) -> None:
        """Drop a request whose client has left; does nothing if it has ended."""
        if request.phase is not ENDED:
            error = ClosedError("the caller cancelled the request")
            self._abandon(request, error, Outcome.CANCELED)
            self._end(request)

    def _refuse(self, request: RequestState, error: PipelineError) -> None:
        """Answer a request that is not admitted; observers do not count it."""
        request.advance(ENDED)
        request.end_sink(refusal(request, error), error)

    def _enter(self, request: RequestState) -> None:
        """Unpack an admitted request."""
        request.advance(ACTIVE)
        request.admitted_ns = self._clock_ns()
        target = request.target
        if target is not None and target.payload is not None:
            request.as_tensors = True  # so that a user's ResponseOp gets numbers
            request.passed_ns = request.admitted_ns
            self._unpacker.given(request, target.payload)
            request.passed_ns = 0
        else:
            self._unpacker.unpack(request)

    def _dispatch(self, request: RequestState, payload: Any) -> None:
        for look in self._filters.on_input:
            look(request, payload)
        (self.executor.cached or self.executor).start(request, payload)

    # Out ------------------------------------------------------------------------------------

    def _complete(self, request: RequestState, answer: Any, packed: PackJob | None = None) -> None:
        """Pack the last Op's payload, or the error; `packed` if the end of a trip has packed it."""
        if request.phase is not ACTIVE:
            return
        target = request.target
        wants_response = target is None or target.wants_response
        payload: Any = answer
        error: PipelineError | None = None
        if type(answer) is not dict:
            takes_views = target is not None and target.takes_views and not self._filters.on_answer
            is_own = wants_response and not self._packer.is_inline
            payload = opened(answer, is_own, takes_views)
            if isinstance(payload, PipelineError):
                payload, error = None, payload
                for look in self._filters.on_error if not self._is_closing else ():
                    if look(request, error):
                        return
                request.blame(error, outcome_of(error))
        request.advance(PACKING)
        request.generation = RequestState.OVER
        request.completed_ns = request.passed_ns or self._clock_ns()
        for node in self.executor.joins:
            node.channel.discard_parts(request)
        if request.live > 1:  # other branches still run, and their answers are not needed
            self.executor.drop(request)
        if packed is not None:
            request.completed_ns = packed.start_ns
            if not packed.is_under_way:
                packed.packed(request, packed.result)
        elif wants_response:
            self._packer.pack(request, payload, error, keeps=answer)
        else:
            request.end_ns = request.completed_ns
            self._answer(request, channel_data(request, payload, error))

    def _end_now(
        self, request: RequestState, error: PipelineError, outcome: Outcome = Outcome.OTHER
    ) -> None:
        """Answer with `error` at once, without running any user code."""
        if request.phase is not ENDED:
            self._abandon(request, error, outcome)
            self._answer(request, refusal(request, error))

    def _abandon(self, request: RequestState, error: PipelineError, outcome: Outcome) -> None:
        """Drop a request. One that succeeded ends as failed if it is still being packed."""
        request.blame(error, outcome)
        if request.phase is not PACKING:
            request.generation = RequestState.OVER
            request.completed_ns = self._clock_ns()
            self.executor.drop(request)

    def _answer(self, request: RequestState, answer: Any) -> None:
        """Give a request its answer, unless it has ended."""
        if request.phase is ENDED:
            return
        if type(answer) is not PlainResponse:
            message = answer.head if type(answer) is LargeResponse else answer
            if type(message) is Response and message.err_no and request.error is None:
                error = error_from_wire(message.err_no, message.err_msg)
                request.blame(error, outcome_of(error))
                answer = withheld(request, error, answer)
        for change in self._filters.on_answer:
            answer = change(request, answer)
        self._end(request)
        try:
            if request.error is None and request.head is None:  # the common case
                request.sink.end(answer)
            else:
                request.end_sink(answer, request.error)
        except Exception:  # a defect in a frontend must not affect other requests
            _LOGGER.exception("an answer could not be handed over")

    def _end(self, request: RequestState) -> None:
        """Report the end of a request, and give its place to the next in the queue."""
        request.advance(ENDED)
        if request.deadline_timer is not None:
            request.deadline_timer.cancel()
        op = None if request.target is None else request.target.op
        self._observers.report_end(request, self.executor.nodes[op].spans.index if op else PIPELINE)
        for look in self._filters.on_end:
            look(request)
        self._admission.release(request, request.outcome not in FROM_OUTSIDE)
        if self._is_closing and self._admission.is_empty:
            self._all_answered.set()
