"""StreamDelivery: takes the parts of answers, packs them in order, times them, or combines them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.schema import ServiceConfig
from pipeline.engine.answers import channel_data
from pipeline.engine.filters import Filter, FilterChain
from pipeline.engine.journal.journal import (
    MAX_ROWS,
    PIPELINE,
    EngineObservers,
    Outcome,
    PartKind,
    pack_part,
)
from pipeline.engine.model_calls import LAST, is_last_part
from pipeline.engine.pack_jobs import Packer, PackJob
from pipeline.engine.ports import Router
from pipeline.engine.request import ACTIVE, PACKING, RequestState
from pipeline.engine.run.payload import opened
from pipeline.engine.run.stage_errors import log_raised
from pipeline.engine.streams.combine import StreamLimits, combined, size_of
from pipeline.engine.streams.dispatcher import StreamDispatcher, note_parts
from pipeline.engine.streams.flow import ENDED, Bundle, RequestStream
from pipeline.engine.streams.iterative import IterativeDispatcher
from pipeline.engine.streams.plan import StreamPlan
from pipeline.errors import (
    DeadlineError,
    PayloadTypeError,
    PipelineError,
    TooLargeError,
    UserCodeError,
    described,
)
from pipeline.op import Op
from pipeline.proto.pipeline.plain import pack_short
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response

if TYPE_CHECKING:
    import asyncio

_LOGGER = logging.getLogger(__name__)

_GIVEN = int(PartKind.GIVEN)
_KINDS: dict[int, PartKind] = {Outcome.OK: PartKind.EMPTY, Outcome.CANCELED: PartKind.CANCELED}
_SMALL_BYTES = 64 * 1024  # combined on the event loop


class RequestEnds(NamedTuple):
    """An engine's functions that end a request.

    Attributes:
        complete: takes an answer that comes at once, or the error that ends a stream.
        answer: ends a request with an answer for its sink.
        end: ends a request whose sink has got all parts.
        end_now: answers a request with an error, at once.
        filters: returns its filters.
    """

    complete: Callable[[RequestState, Any], None]
    answer: Callable[[RequestState, Any], None]
    end: Callable[[RequestState], None]
    end_now: Callable[[RequestState, PipelineError, Outcome], None]
    filters: Callable[[], FilterChain]


class StreamDelivery(Filter):
    """Takes streams out of the graph, for sinks that take parts and for sinks that do not.

    It is also a filter, which begins and ends the streams of each request.
    """

    def __init__(
        self,
        plan: StreamPlan,
        config: ServiceConfig,
        executor: Router,
        packer: Packer,
        loop: asyncio.AbstractEventLoop,
        observers: EngineObservers,
        ends: RequestEnds,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._config = config
        self._part_timeout_s = config.dag.part_timeout_s
        self._limits = StreamLimits(config.dag.max_parts, config.limits.message_bytes)
        self._executor = executor
        self._packer = packer
        self._loop = loop
        self._clock_ns = observers.clock_ns
        self._journal = observers.journal
        self._ends = ends
        nodes = executor.nodes
        for op, places in plan.ends.items():
            node = nodes[op]
            assert isinstance(node, StreamDispatcher), "every maker has one"
            node.ends = tuple((None if end is None else nodes[end], name) for end, name in places)
        for node in nodes.values():
            if isinstance(node, StreamDispatcher):
                node.deliver, node.limits = self._take, self._limits
            if isinstance(node, IterativeDispatcher):
                node.may_hold = config.dag.part_timeout_s is None

    @classmethod
    def made(cls, plan: StreamPlan | None, *args: Any) -> StreamDelivery | None:
        """Return a delivery for a graph that has streams; None: it has none."""
        return None if plan is None else cls(plan, *args)

    # A request begins and ends ------------------------------------------------------------------

    def on_input(self, request: RequestState, payload: Any) -> None:
        op = request.target.op if request.target is not None else None
        if op is not None and op not in self._plan.makers:
            return
        request.stream = stream = RequestStream(is_for_one_op=op is not None)
        stream.changes = self._ends.filters().on_answer
        stream.out = self._out_of(op)
        request.live += stream.restart()
        if stream.out is not None:
            self._expect(request, stream, self._config.dag.first_part_timeout_s, is_first=True)

    def on_end(self, request: RequestState) -> None:
        stream = request.stream
        if stream is None:
            return
        self._executor.drop(request)  # branches may have failed
        if stream.timer is not None:
            stream.timer.cancel()
        takes_parts = stream.out is not None and request.sink.takes_parts
        if self._journal is None or not takes_parts or stream.is_for_one_op:
            return
        now, kind = self._clock_ns(), _KINDS.get(request.outcome, PartKind.FAILED)
        if not (stream.has_last and kind is PartKind.EMPTY):
            began_ns = stream.given_ns or request.start_ns
            ended = request.data_id, PIPELINE, stream.given, kind, began_ns, now, now
            note_parts(self._journal, [pack_part(*ended)])

    def is_decoupled(self, op: Op | None) -> bool:
        """Return whether requests for an Op (None: for the pipeline) are answered in parts."""
        return self._out_of(None) is not None if op is None else op in self._plan.makers

    def _out_of(self, op: Op | None) -> StreamDispatcher | None:
        """Return the dispatcher that makes the parts of the answer; None: there is one answer."""
        source = self._plan.sources.get(self._executor.last.op) if op is None else op
        node = None if source is None else self._executor.nodes[source]
        assert node is None or isinstance(node, StreamDispatcher), "every maker has one"
        return node

    # Parts --------------------------------------------------------------------------------------

    def _take(self, request: RequestState, message: Any) -> None:
        """Take a message of the answer: a Bundle, Absent, ENDED or a PipelineError."""
        stream = request.stream
        assert stream is not None, "it has made a part"
        is_next = not (stream.waiting or stream.is_packing or stream.is_passing)
        if type(message) is Bundle and stream.is_plain and is_next and request.phase is ACTIVE:
            answers = list(map(pack_short, message.parts))
            if None not in answers:  # the common case
                stream.has_last = LAST in message.parts[-1]
                stream.made_ns = self._clock_ns() if self._journal is not None else 0
                stream.is_passing = True
                self._give(request, stream, answers)
                stream.is_passing = False
                if stream.waiting:
                    self._process_waiting(request, stream)
                return
        self._wait(request, stream, message)

    def _wait(self, request: RequestState, stream: RequestStream, message: Any) -> None:
        """Queue a message."""
        stream.waiting.append(message)
        if not stream.is_passing:
            self._process_waiting(request, stream)

    def _process_waiting(self, request: RequestState, stream: RequestStream) -> None:
        stream.is_passing = True
        while stream.waiting and not stream.is_packing and request.phase is ACTIVE:
            message = stream.waiting.popleft()
            if type(message) is Bundle:
                self._pass(request, stream, message)
            elif message is ENDED:
                self._finish(request, stream)
            elif isinstance(message, PipelineError):
                self._ends.complete(request, message)
            else:
                stream.absent = message
                request.took_part()
        stream.is_passing = False

    def _pass(self, request: RequestState, stream: RequestStream, bundle: Bundle) -> None:
        """Pack parts for their sink, or keep them for the one answer."""
        parts, target = bundle.parts, request.target
        if bundle.bytes:
            self._keep(request, stream, parts, bundle.bytes)
            return
        stream.has_last = is_last_part(parts[-1])
        if not request.sink.takes_parts:
            kept = [opened(part, copy=True) for part in parts]
            failed = next((part for part in kept if isinstance(part, PipelineError)), None)
            if failed is None:
                self._keep(request, stream, kept, sum(map(size_of, kept)))
            else:
                self._ends.complete(request, failed)
        elif target is not None and not target.wants_response:
            self._pass_data(request, stream, parts)
        else:
            stream.is_plain = self._packer.fits_plain(request)
            self._pass_one(request, stream, stream.first_of(parts))

    def _pass_data(
        self, request: RequestState, stream: RequestStream, parts: Sequence[Any]
    ) -> None:
        """Give a sink unpacked parts."""
        for part in parts:
            data = opened(part, copy=False)
            if isinstance(data, PipelineError):
                self._ends.complete(request, data)
                return
            stream.has_last = is_last_part(data)
            self._give(request, stream, [channel_data(request, data, None)])
            if request.phase is not ACTIVE:
                return

    def _pass_one(self, request: RequestState, stream: RequestStream, payload: Any) -> None:
        """Pack a part, maybe in a thread."""
        data = payload
        if type(payload) is not dict:
            data = opened(payload, copy=not self._packer.is_inline)
        stream.has_last = is_last_part(data)
        if isinstance(data, PipelineError):
            self._ends.complete(request, data)
        else:
            stream.is_packing = True
            stream.made_ns = self._clock_ns() if self._journal is not None else 0
            self._packer.pack(request, data, None, keeps=payload, packed=self._packed)

    def _packed(self, request: RequestState, response: Any) -> None:
        """Give a sink its part; a part that cannot be packed ends the stream."""
        stream = request.stream
        if stream is None or request.phase is not ACTIVE:
            return
        stream.is_packing = False
        message = response.head if type(response) is LargeResponse else response
        if type(message) is Response and message.err_no:
            self._close(request)
            self._ends.answer(request, response)
            return
        self._give(request, stream, [response])
        if not stream.is_passing:
            self._process_waiting(request, stream)

    def _give(self, request: RequestState, stream: RequestStream, answers: list[Any]) -> None:
        """Give a sink parts that go together."""
        given, count = stream.given, len(answers)
        if self._journal is not None and not stream.is_for_one_op:
            now, data_id, rows = self._clock_ns(), request.data_id, self._journal.parts
            began_ns, made_ns = stream.given_ns or request.start_ns, stream.made_ns or now
            for number in range(given, given + count):
                rows.append(pack_part(data_id, PIPELINE, number, _GIVEN, began_ns, made_ns, now))
                began_ns = now
            stream.given_ns = now
            if len(rows) >= MAX_ROWS:
                self._journal.flush_parts()
        stream.given = given + count
        if self._part_timeout_s is not None or stream.due_at is not None:
            self._expect(request, stream, self._part_timeout_s)
        for change in stream.changes:
            answers = [change(request, answer) for answer in answers]
        try:
            request.sink.add(answers)
        except Exception:  # a defect in a frontend must not affect other requests
            _LOGGER.exception("a part could not be handed over")
            request.cancel()

    def _finish(self, request: RequestState, stream: RequestStream) -> None:
        """End a stream that succeeded, unless all of its parts went elsewhere."""
        if stream.absent is not None and not (stream.given or stream.collected):
            self._ends.complete(request, stream.absent.at_the_end())
            return
        if request.sink.takes_parts:
            self._close(request)
            self._ends.end(request)
            request.sink.end(None)
            return
        parts, combine = stream.collected, self._packer.combine
        if combine is None and stream.kept.bytes <= _SMALL_BYTES:
            self._ends.complete(request, combined(parts))
        else:
            call = _combining(combine or combined, request.data_id)
            job = PackJob(request, call, parts, packed=self._combined)
            stream.is_packing = True
            self._packer.workers.submit([job])

    def _combined(self, request: RequestState, answer: Any) -> None:
        if request.phase is ACTIVE:
            self._ends.complete(request, answer)

    def _close(self, request: RequestState) -> None:
        """Drop what is left of a request in the graph: its answer is known."""
        request.advance(PACKING)
        request.generation = RequestState.OVER
        request.completed_ns = self._clock_ns()
        self._executor.drop(request)

    def _keep(
        self, request: RequestState, stream: RequestStream, parts: Sequence[Any], size: int
    ) -> None:
        """Keep parts for a client that takes one answer only."""
        stream.collected += parts
        if too_much := stream.kept.add_all(len(parts), size, self._limits):
            assert stream.out is not None, "it has made a part"
            text = f"the parts of Op {stream.out.name!r} are {too_much} for one answer"
            self._ends.complete(request, TooLargeError(f"{text}: ask for them as a stream"))
            return
        self._expect(request, stream, self._part_timeout_s)
        request.took_part(len(parts))

    # Time ---------------------------------------------------------------------------------------

    def _expect(
        self,
        request: RequestState,
        stream: RequestStream,
        limit_s: float | None,
        is_first: bool = False,
    ) -> None:
        """Set the deadline of the next part of a stream."""
        if limit_s is None:
            stream.due_at = None
            return
        stream.due_at, stream.limit_s = self._loop.time() + limit_s, limit_s
        stream.is_first = is_first
        if stream.timer is None:
            stream.timer = self._loop.call_at(stream.due_at, self._look, request, stream)

    def _look(self, request: RequestState, stream: RequestStream) -> None:
        """End a stream whose next part is late; the time of a slow client does not count."""
        stream.timer = None
        if stream.due_at is None or request.phase is not ACTIVE:
            return
        assert stream.out is not None, "else nothing is due"
        flow = stream.flows.get(stream.out)
        if flow is not None and flow.sent - flow.slowest >= self._config.dag.stream_window:
            stream.due_at = self._loop.time() + stream.limit_s  # it waits for its client
        if self._loop.time() < stream.due_at:
            stream.timer = self._loop.call_at(stream.due_at, self._look, request, stream)
            return
        which = "first_part_timeout" if stream.is_first else "part_timeout"
        what = "first part" if stream.is_first else f"part {stream.given or len(stream.collected)}"
        error = DeadlineError(
            f"(data_id={request.data_id} log_id={request.log_id}) {which} passed: the {what} of "
            f"the stream was not there after {stream.limit_s:.4g} s."
        )
        self._ends.end_now(request, error, Outcome.REJECTED)


def _combining(combine: Callable[[list[Any]], Any], data_id: int) -> Callable[[Sequence[Any]], Any]:
    """Return the job's function that combines parts; it raises nothing."""

    def call(parts: Sequence[Any]) -> Any:
        try:
            answer = combine(list(parts))
        except PipelineError as error:
            return error
        except BaseException as error:  # user code; a worker survives even SystemExit
            log_raised(f"data_id={data_id} {len(parts)} parts", "ResponseOp", "combine", error)
            failed = UserCodeError(f"combine of the ResponseOp raised {described(error)}")
            failed.was_logged = True
            return failed
        if isinstance(answer, dict):
            return answer
        return PayloadTypeError(
            f"combine of the ResponseOp returned {type(answer).__name__}: return a dict"
        )

    return call
