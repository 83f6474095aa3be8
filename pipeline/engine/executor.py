"""DAGExecutor: admits requests, moves them through the graph, answers each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pipeline.config.schema import ServiceConfig
from pipeline.data import ChannelData
from pipeline.engine.admission import AdmissionController
from pipeline.engine.bound_op import unpack_result
from pipeline.engine.dispatcher import OpDispatcher, link
from pipeline.engine.graph import Graph
from pipeline.engine.journal import FROM_OUTSIDE, PIPELINE, Outcome, outcome_of
from pipeline.engine.observers import EngineObservers
from pipeline.engine.pack_jobs import PackJob, PackRunner
from pipeline.engine.payload import opened
from pipeline.engine.request import RequestState, RequestTarget
from pipeline.engine.router import Router, own_dict
from pipeline.engine.startup_log import told_if_slow
from pipeline.engine.state import EngineState
from pipeline.engine.worker_api import Worker, WorkersFactory
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InitError,
    PackageError,
    PipelineError,
    described,
    error_from_wire,
)
from pipeline.op import (
    EXECUTOR_NAME,
    PROFILE_KEY,
    Op,
    ResponseOp,
    has_tensors,
    is_cheap_to_pack,
    pack_error,
    pack_large,
    runs_on_the_loop,
    wants_profile,
)
from pipeline.predictors.metadata import ModelMetadata
from pipeline.proto.pipeline.blocks import BlockMessage
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import AbandonedError

_DEFAULT_CAP = 256  # requests in the graph where neither worker_num nor the batches say more
_LAST_ID = 10**18
_JOIN_TIMEOUT_S = 5.0


class DAGExecutor:
    """The engine of one server; everything but the workers runs on its event loop.

    Args:
        graph: checked; its Ops are configured.
        config: of the service.
        make_workers: makes an Op's workers; given the callback that wakes the dispatcher.
        loop: the running event loop.
        watchers: who is told what happens.
        screen: refuses a request before it is unpacked (a wrong service name, say).
        on_readiness: told on the loop when `is_ready` changes.
        numbering: the first data id, and the step from one to the next.
    """

    def __init__(
        self,
        graph: Graph,
        config: ServiceConfig,
        make_workers: Callable[[Callable[[], None]], WorkersFactory],
        loop: asyncio.AbstractEventLoop,
        watchers: EngineObservers | None = None,
        screen: Callable[[Any], PipelineError | None] = lambda raw: None,
        on_readiness: Callable[[bool], None] = lambda is_ready: None,
        numbering: tuple[int, int] = (0, 1),
    ) -> None:
        self._config = config
        self._loop = loop
        self._watchers = watchers or EngineObservers()
        self._clock_ns = self._watchers.clock_ns
        self._screen = screen
        self._on_readiness = on_readiness
        self._was_ready = False
        self._request_op = graph.request_op
        self._response_op = graph.response_op
        factory = make_workers(self._pump)
        self.nodes: dict[Op, OpDispatcher] = {
            op: OpDispatcher(
                op, factory, self, loop, index, self._watchers, config.dag.channel_size
            )
            for index, op in enumerate(graph.ops)
        }
        self._index_of = {op: index for index, op in enumerate(graph.ops)}
        link(self.nodes, graph.successors)
        self._entries = tuple(self.nodes[op] for op in graph.successors(graph.request_op))
        self._router = Router(self.nodes, graph.last_op, self._finish)
        self.deliver: Callable[[OpDispatcher, RequestState, Any, bool], None] = self._router.deliver
        self.strand: Callable[[RequestState], None] = self._router.strand
        self._unpacks_inline = runs_on_the_loop(self._request_op, "unpack_request_package")
        self._packs_inline = runs_on_the_loop(self._response_op, "pack_response_package")
        self._unpackers = factory(self._request_op, PackRunner(self._unpacked))
        self._packers = factory(self._response_op, PackRunner(self._packed))
        self._is_bounded = config.dag.channel_size > 0
        cap = config.most_inside or _default_cap(graph)
        self._gate = AdmissionController(
            cap, config.queue_size, self._is_open, self._enter, loop.time
        )
        self._touched: list[OpDispatcher] = []
        self._is_pump_due = False
        self._next_id, self._id_step = numbering
        self._is_closing = self._is_leaving = False
        self._is_started = False
        self._init_error = ""
        self._all_answered: asyncio.Event = asyncio.Event()

    # Life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Initialise every Op and start its workers; InitError names the Op that failed."""
        pools = {f"Op {node.name!r}": node.workers for node in self.nodes.values()}
        pools |= {"RequestOp": self._unpackers, "ResponseOp": self._packers}
        try:
            async with asyncio.TaskGroup() as group:
                for name, pool in pools.items():
                    group.create_task(told_if_slow(name, pool.start(), self._loop))
        except ExceptionGroup as failures:
            failure = failures.exceptions[0]
            self._init_error = str(failure).partition("\n")[0]  # without its traceback
            await self.stop(0.0)
            raise failure from None
        self._is_started = True
        self.workers_changed()
        self._gate.let_in()

    @property
    def is_ready(self) -> bool:
        """Whether every worker of every Op takes work."""
        return (
            self._is_started
            and not self._is_leaving
            and all(node.workers.is_ready for node in self.nodes.values())
        )

    def workers_changed(self) -> None:
        """An Op lost a worker, or got one back."""
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            self._on_readiness(self._was_ready)

    @property
    def inside(self) -> int:
        """Requests in the graph."""
        return len(self._gate.inside)

    @property
    def waiting(self) -> int:
        """Requests that wait to be let into the graph."""
        return self._gate.waiting

    def state(self) -> EngineState:
        """How it stands right now."""
        return EngineState(
            is_ready=self.is_ready,
            inside=self.inside,
            waiting=self.waiting,
            accepted=self._gate.accepted,
            rejected=self._gate.rejected,
            ops=[node.state() for node in self.nodes.values()],
        )

    def note(self, op: Op) -> ModelMetadata | None:
        """Of the model that the workers of an Op have loaded; None for none, or before that."""
        return self.nodes[op].workers.note

    def leave(self) -> None:
        """Say not ready for good; go on working."""
        self._is_leaving = True
        self.workers_changed()

    async def stop(self, grace_s: float) -> int:
        """Refuse new requests, let the others finish, answer what is left after `grace_s`.

        Without workers nobody waits. Returns the number of worker threads that did not end.
        """
        self._is_closing = True
        self.leave()
        if not self._gate.is_empty:
            try:
                await asyncio.wait_for(
                    self._all_answered.wait(), grace_s if self._is_started else 0.0
                )
            except TimeoutError:
                self.answer_all_closed()
        for node in self.nodes.values():
            node.close()
        pools = [*(node.workers for node in self.nodes.values()), self._unpackers, self._packers]
        return sum(await asyncio.gather(*(pool.stop(_JOIN_TIMEOUT_S) for pool in pools)))

    def answer_all_closed(self) -> None:
        """Answer all requests at once; ends the grace period of a `stop` that is under way."""
        for request in self._gate.everybody():
            self._end_now(request, self._closed_error())

    def _closed_error(self) -> PipelineError:
        if self._init_error:  # who came while the Ops were initialised
            return InitError(f"pipeline server init error: {self._init_error}")
        return ClosedError("dag closed.")

    # In ---------------------------------------------------------------------------------

    async def handle(
        self, raw: Any, timeout_s: float | None = None, route: RequestTarget | None = None
    ) -> Any:
        """One request in, one response out; the one entry for every door.

        Args:
            raw: what `RequestOp.unpack_request_package` takes.
            timeout_s: the caller's own deadline, from now; the service's applies as well.
            route: for a request that is not just for RequestOp and ResponseOp.

        Returns:
            what `ResponseOp.pack_response_package` gives, for errors too; or the ChannelData if
            the route says so.

        Raises:
            OverloadedError: as many requests as allowed are inside and waiting, or so many that
                this one cannot be answered in its time.
        """
        request = self._admit(raw, timeout_s, route)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._drop(request)
            raise

    def _admit(
        self, raw: Any, timeout_s: float | None, route: RequestTarget | None
    ) -> RequestState:
        data_id = self._next_id
        self._next_id = (data_id + self._id_step) % _LAST_ID
        request = RequestState(raw, self._loop.create_future(), data_id, self._clock_ns(), route)
        refusal = self._closed_error() if self._is_closing else self._screen(raw)
        if refusal is not None:
            request.answer.set_result(self._refusal(request, refusal))
            return request
        self._gate.check()
        time_left_s, most_s = timeout_s, self._config.timeout_s
        if most_s is not None and (timeout_s is None or most_s < timeout_s):
            time_left_s = most_s
        if time_left_s is not None and self._is_behind(route):
            self._gate.judge(time_left_s)
        if route is not None:
            request.rows = route.rows
        if self._watchers.begin_trace is not None:
            traceparent = route.traceparent if route is not None else ""
            request.trace = self._watchers.trace_of(data_id, traceparent)
        if time_left_s is not None:
            self._set_deadline(request, time_left_s)
        self._gate.take(request)
        return request

    def _is_open(self) -> bool:
        is_full = self._is_bounded and any(node.is_full for node in self._entries)
        return self._is_started and not is_full

    def _look(self) -> None:
        """Tell the gate whether more wait than can be begun, and how long the slowest Op takes."""
        is_backed_up = self._gate.waiting > 0
        for node in self.nodes.values():
            is_backed_up = is_backed_up or node.is_backed_up
        turn_s = max(node.load.service_s for node in self.nodes.values())
        self._gate.look(is_backed_up, turn_s)

    def _is_behind(self, route: RequestTarget | None) -> bool:
        """Whether a request comes after those that are inside: one for an idle Op does not."""
        return route is None or route.op is None or self.nodes[route.op].is_backed_up

    def _set_deadline(self, request: RequestState, time_left_s: float) -> None:
        request.asked_at = self._loop.time()
        request.deadline = when = request.asked_at + time_left_s
        request.deadline_timer = self._loop.call_at(when, self._expire, request)

    def _enter(self, request: RequestState) -> None:
        request.admitted_ns = self._clock_ns()
        if request.route is not None and request.route.payload is not None:
            request.as_tensors = True  # so that an overridden ResponseOp keeps numbers
            self._start(request, request.route.payload)
        elif not self._unpacks_inline:
            self._unpackers.submit([PackJob(request, "unpack_request_package", request.raw)])
        elif request.route is not None and request.route.is_large:
            self._unpackers.submit([PackJob(request, self._unpack, request.raw)])
        else:
            self._unpack_inline(request)

    def _unpack(self, raw: Any) -> Any:
        """What our own RequestOp makes of a large request, in a thread."""
        try:
            unpacked = self._request_op.unpack_request_package(raw)
            if isinstance(raw, BlockMessage):  # who asks holds it until there is an answer
                raw.release()
            return unpacked
        except AbandonedError:
            raise
        except Exception as error:  # as in `_unpack_inline`
            return _refused(error)

    def _unpack_inline(self, request: RequestState) -> None:
        try:
            self._begin(request, self._request_op.unpack_request_package(request.raw))
        except Exception as error:  # ours, on a caller's data: that caller is told
            self._finish(request, _refused(error))

    def _unpacked(self, worker: Worker, job: PackJob) -> None:
        if job.request.is_over or job.is_stale:
            return
        if isinstance(job.result, PipelineError):
            self._finish(job.request, job.result)
        else:
            self._begin(job.request, job.result)

    def _begin(self, request: RequestState, unpacked: Any) -> None:
        try:
            payload, log_id = unpack_result(unpacked)
        except PipelineError as error:
            self._finish(request, error)
            return
        request.log_id = int(log_id or 0)
        request.as_tensors = has_tensors(request.raw)
        if self._watchers.profile is not None and wants_profile(request.raw):
            request.spans = []
        self._start(request, payload)

    def _start(self, request: RequestState, payload: Any) -> None:
        """Send it into the graph, or to the only Op that it is for; also when it starts anew."""
        request.dispatched_ns = self._clock_ns()
        if self._config.dag.retry > 1:
            request.payload, payload = payload, own_dict(payload)
        route = request.route
        if route is not None and route.op is not None:
            self.nodes[route.op].offer_alone(request, route)
        else:
            self._router.send(request, self._entries, EXECUTOR_NAME, payload)

    # Through ----------------------------------------------------------------------------

    def touch(self, node: OpDispatcher) -> None:
        if not node.is_touched:
            node.is_touched = True
            self._touched.append(node)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Let every Op to which something happened cut its batches."""
        is_left = False
        self._is_pump_due = True  # whoever is touched below is pumped in this very call
        while self._touched:
            nodes, self._touched = self._touched, []
            for node in nodes:
                is_left = node.pump() or is_left
        self._is_pump_due = False
        if self._gate.judges and (is_left or self._gate.waiting or self._gate.is_backed_up):
            self._look()
        if self._gate.waiting:
            self._gate.let_in()

    # Out --------------------------------------------------------------------------------

    def _finish(self, request: RequestState, answer: Any) -> None:
        """The last Op's payload, or an error: pack it."""
        if request.is_over:
            return
        is_read_here = self._packs_inline and request.is_packed
        parcel, answer = answer, opened(answer, copy=not is_read_here)
        error = answer if isinstance(answer, PipelineError) else None
        if isinstance(error, DeadlineError) and self._restart(request):
            return
        branches = request.live - 1  # that nobody waits for any more
        self._close(request, error, outcome_of(error) if error else Outcome.OK)
        if branches > 0:
            for node in self.nodes.values():
                node.forget(request)
        data = self._channel_data(request, None if error else answer, error)
        if not request.is_packed:
            self._answer(request, data)
        elif self._packs_inline and is_cheap_to_pack(self._response_op, data):
            self._answer(request, self._pack_inline(self._response_op, data))
        else:
            method = self._pack_large if self._packs_inline else "pack_response_package"
            job = PackJob(request, method, data)
            job.keeps = parcel  # arrays in the answer may show its memory
            self._packers.submit([job])

    def _restart(self, request: RequestState) -> bool:
        """`dag.retry`: run the whole request again after a timeout, if it has attempts left."""
        if request.generation + 1 >= self._config.dag.retry or self._is_closing:
            return False
        request.generation += 1
        request.live = 0
        request.settled, request.laps = frozenset(), None
        request.input_ns = request.infer_ns = request.output_ns = 0
        for node in self.nodes.values():
            node.forget(request)
        self._start(request, request.payload)
        return True

    def _channel_data(
        self, request: RequestState, payload: Any, error: PipelineError | None
    ) -> ChannelData:
        return ChannelData(
            request.data_id,
            request.log_id,
            payload,
            error,
            as_tensors=request.as_tensors,
            client_need_profile=request.spans is not None,
        )

    def _refusal(self, request: RequestState, error: PipelineError) -> Any:
        """The answer for an error that nobody's code is asked about."""
        data = self._channel_data(request, None, error)
        return pack_error(data) if request.is_packed else data

    def _pack_large(self, data: ChannelData) -> Any:
        """What our own ResponseOp makes of a large answer, in a thread."""
        try:
            return pack_large(self._response_op, data, self._config.limits)
        except AbandonedError:
            raise
        except Exception as error:  # as in `_pack_inline`
            return pack_error(ChannelData(data.data_id, data.log_id, error=_package_error(error)))

    def _pack_inline(self, op: ResponseOp, data: ChannelData) -> Any:
        try:
            return op.pack_response_package(data)
        except Exception as error:  # ours, on an answer of any type: that caller is told
            return pack_error(ChannelData(data.data_id, data.log_id, error=_package_error(error)))

    def _packed(self, worker: Worker, job: PackJob) -> None:
        response = job.result
        if isinstance(response, PipelineError):
            failed = self._channel_data(job.request, None, response)
            response = pack_error(failed)
        self._answer(job.request, response)

    def _expire(self, request: RequestState) -> None:
        self._end_now(
            request,
            DeadlineError(
                f"(data_id={request.data_id} log_id={request.log_id}) the request's deadline "
                "passed before it was answered."
            ),
            Outcome.REJECTED,
        )

    def _end_now(
        self, request: RequestState, error: PipelineError, outcome: Outcome = Outcome.OTHER
    ) -> None:
        """Answer with `error` at once, without waiting for anybody's code."""
        if request.answer.done():
            return
        self._abandon(request, error, outcome)
        _blame(request, error, outcome)
        self._answer(request, self._refusal(request, error))

    def _drop(self, request: RequestState) -> None:
        """The caller went away."""
        error = ClosedError("the caller cancelled the request")
        self._abandon(request, error, Outcome.CANCELED)
        _blame(request, error, Outcome.CANCELED)
        self._leave(request)

    def _abandon(self, request: RequestState, error: PipelineError, outcome: Outcome) -> None:
        if not request.is_over:
            self._close(request, error, outcome)
            for node in self.nodes.values():
                node.forget(request)

    def _close(self, request: RequestState, error: PipelineError | None, outcome: Outcome) -> None:
        """From here on nothing that is still on its way counts for this request.

        `outcome` is how it ends if there is an error.
        """
        request.generation = RequestState.OVER
        request.completed_ns = self._clock_ns()
        if error is not None:
            request.error, request.outcome = error, outcome
        self._router.forget_parts(request)

    def _answer(self, request: RequestState, response: Any) -> None:
        if not request.answer.done():
            message = response.head if type(response) is LargeResponse else response
            if type(message) is Response:
                if message.err_no and request.error is None:
                    request.error = error_from_wire(message.err_no, message.err_msg)
                    request.outcome = outcome_of(request.error)
                if request.spans is not None:
                    self._add_profile(request, message)
            request.answer.set_result(response)
        self._leave(request)

    def _add_profile(self, request: RequestState, response: Response) -> None:
        request.end_ns = self._clock_ns()
        if profile := self._watchers.profile_of(request):
            response.key.append(PROFILE_KEY)
            response.value.append(profile)

    def _leave(self, request: RequestState) -> None:
        """Give the request's place to the next one that waits."""
        if not request.is_told:
            self._watchers.tell(request, self._target(request))
        if request.deadline_timer is not None:
            request.deadline_timer.cancel()
        self._gate.leave(request, request.outcome not in FROM_OUTSIDE)
        if self._is_closing and self._gate.is_empty:
            self._all_answered.set()

    def _target(self, request: RequestState) -> int:
        if request.route is None or request.route.op is None:
            return PIPELINE
        return self._index_of[request.route.op]


def _default_cap(graph: Graph) -> int:
    """Enough for every Op to have a batch at each worker and the next one waiting."""
    configs = [op.pipeline_config for op in graph.ops]
    return max(_DEFAULT_CAP, 2 * sum(conf.concurrency * conf.batch_size for conf in configs))


def _blame(request: RequestState, error: PipelineError, outcome: Outcome) -> None:
    """Also a request that went well ends badly if it is still being packed."""
    if request.error is None:
        request.error, request.outcome = error, outcome


def _refused(error: Exception) -> PipelineError:
    """What is told whose request cannot be unpacked by our own RequestOp."""
    refusal = _package_error(error)
    refusal.is_callers = True
    return refusal


def _package_error(error: Exception) -> PipelineError:
    if isinstance(error, PipelineError) and not isinstance(error, PackageError):
        return error
    return PackageError(f"rpc package error: {described(error)}")
