"""RequestState: the engine's state of one request; and the sink that takes its answer.

Only the event loop changes them, except for what a thread reads while it unpacks a request.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
from msgspec import field

from pipeline.answer_head import AnswerHead
from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.product_errors import with_head
from pipeline.errors import PipelineError
from pipeline.op import Op

if TYPE_CHECKING:
    from pipeline.engine.journal.journal import EngineObservers, TripRowForm
    from pipeline.engine.streams.flow import RequestStream

_LOGGER = logging.getLogger(__name__)

LAST_ID = 10**18
"""Data ids start again from 0 here."""

_LATE_SHARE = 0.5  # of its time has passed when a request moves to the back of the queue


class ModelView(Protocol):
    """A model of this server that a request is for.

    Attributes:
        ops: the Ops of its graph; None: the model is a single Op.
        begin: begins a request to the model.
    """

    name: str
    version: str

    @property
    def ops(self) -> Sequence[Op] | None: ...
    @property
    def begin(self) -> Begin: ...


class TraceCollector(Protocol):
    """Records the progress of one request, for a trace."""

    def attach(self, request: RequestState) -> None:
        """Attach to a new request; its `spans` are the collector's from now on."""

    def asks(self, model: ModelView, request_id: str, inputs: Mapping[str, Any]) -> Begin:
        """Return the `begin` for a request to another model that this request sends."""


class Recipient(Protocol):
    """An Op, as seen by code that sends it requests or counts them."""

    name: str
    is_dirty: bool

    def schedule(self) -> None:
        """Send all batches that are ready."""

    def enqueue(
        self,
        request: RequestState,
        slot: str,
        part: Any,
        stand_in: str | None = None,
        entered: tuple[Recipient, ...] = (),
        is_all: bool = False,
    ) -> None:
        """Take the answer of the producer `slot`; see `OpDispatcher.enqueue`."""


class MemberRequests(Protocol):
    """Requests that were sent to another model for the members of a convoy."""

    def leave(self, place: int) -> None:
        """Note that the client of the member at `place` has left."""


class Members(Protocol):
    """The requests in a convoy; see `convoy.Convoy`."""

    rows: list[int]
    infos: list[RequestInfo]
    ids: list[int]
    left: set[int]
    followers: list[MemberRequests]

    def __len__(self) -> int: ...
    def enter(
        self, request: RequestState, numbers: Iterator[int], forget: Callable[[int], None]
    ) -> None: ...
    def following(self, infos: list[RequestInfo]) -> Members: ...
    def note_failures(self, answer: Any, op: str) -> None: ...
    def runs_again(self, error: PipelineError | None) -> bool: ...
    def ending(self, error: PipelineError | None) -> Sequence[int]: ...
    def endings(self, outcome: Any) -> Sequence[bytes]: ...
    def report_ends(
        self, observers: EngineObservers, request: RequestState, target: int
    ) -> bool: ...


class RequestOwner(Protocol):
    """The engine of a request."""

    @property
    def hides_errors(self) -> bool: ...
    @property
    def inside(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def cancel(self, request: RequestState) -> None: ...


class RequestTarget(msgspec.Struct, frozen=True):
    """Route of a request that does not enter by the RequestOp and leave by the ResponseOp.

    Args:
        op: only this Op processes it; None: the whole graph does.
        payload: replaces the result of the RequestOp, which is not called; with `op` its
            `input_dicts`, or with `raw_inputs` the inputs of its `process`.
        raw_inputs: see `payload`; neither preprocess nor postprocess runs.
        wants_response: False: the answer is the ChannelData itself; the ResponseOp is not called.
        rows: number of samples in the request.
        traceparent: of the client, in W3C Trace Context's form; "" for none.
        is_large: the request is too large to be unpacked on the event loop.
        info: the request's id, parameters and so on; None: none.
        is_text: numbers in `payload` came as text, which a schema converts.
        collector: records the progress of the request; None: the request is not traced in a file.
        convoy: the requests whose samples `payload` holds; None: this is a single request.
        takes_views: large bytes in the answer may be memoryviews.
        ready_ns: when its inputs were made; 0: when the request comes.
    """

    op: Op | None = None
    payload: Any = None
    raw_inputs: bool = False
    wants_response: bool = True
    rows: int = 1
    traceparent: str = ""
    is_large: bool = False
    info: RequestInfo | None = None
    is_text: bool = False
    collector: TraceCollector | None = None
    convoy: Members | None = None
    takes_views: bool = False
    ready_ns: int = 0


class Phase(enum.IntEnum):
    """State of a request between the frontend and its answer."""

    ARRIVED = 0
    QUEUED = 1  # waits to be admitted to the graph
    ACTIVE = 2  # is unpacked, or processed by Ops
    PACKING = 3  # its result is known; results that come later are dropped
    ENDED = 4  # answered, or its client has left


ARRIVED, QUEUED, ACTIVE, PACKING, ENDED = Phase  # reading them from the Enum is slow

LEGAL_STEPS: tuple[tuple[Phase, ...], ...] = (
    (QUEUED, ACTIVE, ENDED),  # of ARRIVED
    (ACTIVE, ENDED),  # of QUEUED
    (PACKING, ENDED),  # of ACTIVE; a request that starts over stays there
    (ENDED,),  # of PACKING
    (),  # of ENDED
)
"""The phases that may follow each phase; a tuple, because an Enum's hash is a call of Python code.
"""


def report_illegal_step(request: RequestState, phase: Phase) -> None:
    """Log an illegal step; in tests this raises instead.

    The server continues: an exception here would lose the other requests of a batch.
    """
    _LOGGER.error(
        "(data_id=%d) illegal step from %s to %s", request.data_id, request.phase.name, phase.name
    )


class RequestDetours(msgspec.Struct, eq=False):
    """Jumps and loops of one request.

    Attributes:
        settled: targets of jumps that have answered, or that a jump has answered for.
        laps: how often jumps back and loops made each Op run again.
        loops: how often each Op has looped.
    """

    settled: set[Recipient] = field(default_factory=set)
    laps: Counter[Recipient] = field(default_factory=Counter)
    loops: Counter[Recipient] = field(default_factory=Counter)


class RequestState(msgspec.Struct, eq=False):
    """One request between the frontend and its answer.

    Times in ns are `time.monotonic_ns`, see `engine.journal.REQUEST`; `arrived_at` and `deadline`
    are `time.monotonic`.

    Attributes:
        timeout_s: the client's own limit.
        generation: counts the starts: a retry of the whole request raises it, and `OVER` says that
            the result is known. Answers that carry an older number are dropped.
        live: the number of Ops that have it in a queue or process it.
        rows: number of samples.
        asked_at: the time when it came; set only if there is a deadline.
        dispatched_ns: when the graph started it.
        passed_ns: when the loop got what it passes on at this moment, the request or an Op's
            answer; 0: at this moment.
        input_ns: a sum over its spans, as are `infer_ns` and `output_ns`; see `stages_ns`.
        spans: its spans, packed; None: nobody asked for them.
        is_profiled: whether the client asked for `spans`.
        trip_rows: all its spans, if one trip ran all Ops: a row form and its times. The sums do not
            include these.
        trace: its own traceparent; "" if it is not traced.
        detours: its jumps and loops; None: none so far.
        stream: the state of its streams; None: the graph has none.
        judged_by: the shedder of the Op that could have refused it before it was admitted.
        convoy: the requests in it; None: it is a single request.
        count: the number of requests in it.
        info: the client's parameters, headers and so on.
        head: what an Op adds to the head of the answer.
    """

    OVER: ClassVar[int] = -1

    raw: Any
    sink: ResponseSink
    engine: RequestOwner
    data_id: int
    start_ns: int
    target: RequestTarget | None = None
    timeout_s: float | None = None
    phase: Phase = ARRIVED
    log_id: int = 0
    generation: int = 0
    live: int = 0
    rows: int = 1
    as_tensors: bool = False
    arrived_at: float = 0.0
    deadline: float | None = None
    deadline_timer: asyncio.TimerHandle | None = None
    outcome: int = Outcome.OK
    error: PipelineError | None = None
    admitted_ns: int = 0
    dispatched_ns: int = 0
    completed_ns: int = 0
    end_ns: int = 0
    passed_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    spans: list[bytes] | None = None
    is_profiled: bool = False
    trip_rows: tuple[TripRowForm, tuple[int, ...]] | None = None
    trace: str = ""
    detours: RequestDetours | None = None
    stream: RequestStream | None = None
    judged_by: object | None = None
    convoy: Members | None = None
    count: int = 1
    info: RequestInfo = NO_INFO
    head: AnswerHead | None = None

    def detoured(self) -> RequestDetours:
        """Return its jumps and loops; create them at the first."""
        self.detours = detoured = self.detours or RequestDetours()
        return detoured

    def lap(self, node: Recipient) -> int:
        """Return the number of its current lap at an Op."""
        return 0 if self.detours is None else self.detours.laps[node]

    def stages_ns(self) -> tuple[int, int, int]:
        """Return the sums over its spans; call this after its end."""
        if self.trip_rows is not None:
            (rows, times), self.trip_rows = self.trip_rows, None
            rows.add_times(self, times)
        return self.input_ns, self.infer_ns, self.output_ns

    def advance(self, phase: Phase) -> None:
        """Change its phase."""
        if phase not in LEGAL_STEPS[self.phase]:
            report_illegal_step(self, phase)
        self.phase = phase

    def cancel(self) -> None:
        """Drop the request, whose client has left; does nothing if it has ended."""
        self.engine.cancel(self)

    def end_sink(self, answer: Any, error: PipelineError | None) -> None:
        """End the sink with an answer and its head, or with the answer of an error."""
        if error is not None:
            self.sink.fail(with_head(error))
        elif self.head is not None:
            self.sink.take_head(self.head)
        self.sink.end(answer)

    def took_part(self, count: int = 1) -> None:
        """Note that parts of the answer were sent to the client: more may follow."""
        stream = self.stream
        if stream is not None and stream.out is not None and self.phase is ACTIVE:
            stream.out.took(self, count=count)

    def blame(self, error: PipelineError, outcome: Outcome) -> None:
        """Record why the request fails, unless it has failed already."""
        if self.error is None:
            self.error, self.outcome = error, outcome

    def is_late(self, now: float, span_s: float = 0.0) -> bool:
        """Return whether newer requests go before it; see the function `is_late`."""
        deadline = self.deadline
        return deadline is not None and is_late(now, self.arrived_at, deadline, span_s)


def is_late(now: float, arrived_at: float, deadline: float, span_s: float = 0.0) -> bool:
    """Return whether a request has waited so long that all others go before it.

    A request that has used half of its time, or has less left than one run of the Op takes
    (`span_s`), would usually miss its deadline, and make all requests behind it miss theirs.
    """
    return now >= min(arrived_at + (deadline - arrived_at) * _LATE_SHARE, deadline - span_s)


class ResponseSink(Protocol):
    """Receiver of a request's answer, on the event loop; it must not block.

    A sink is ended once, maybe before `Engine.begin` returns, and gets nothing after that. The sink
    of a cancelled request gets nothing. Only a sink whose `takes_parts` is true gets parts, and
    only after `Engine.begin` has returned. After each part the sink's owner calls `took_part` of
    the request; without that call no more parts come.
    """

    @property
    def is_ours(self) -> bool:
        """Return whether the server itself is the client: such a sink gets errors in full."""

    @property
    def takes_parts(self) -> bool:
        """Return whether it takes the parts of a stream; otherwise they come as one answer."""

    def take_head(self, head: AnswerHead) -> None:
        """Take the head that user code gives the answer; `end` follows at once."""

    def fail(self, error: PipelineError) -> None:
        """Take the error of a failed request; `end` follows at once with its answer.

        The text of `error` is not for clients: `end` gets the text that they may read.
        """

    def add(self, answers: Sequence[Any]) -> None:
        """Take answers of a stream, in order; others follow, or the end."""

    def end(self, answer: Any) -> None:
        """Take the last answer: of a unary request the only one, or an error's.

        None: the answer was a stream, and all of its parts were given.
        """


class RequestHandle(Protocol):
    """A request that has begun."""

    def cancel(self) -> object:
        """Drop the request, whose client has left; does nothing if it has ended."""


class StreamHandle(RequestHandle, Protocol):
    """A request that has begun and may be answered in parts."""

    def took_part(self, count: int = 1) -> None:
        """Note that parts of the answer were sent to the client: more may follow."""


Begin = Callable[[Any, float | None, RequestTarget | None, ResponseSink], RequestHandle]
"""`Engine.begin`: (raw, timeout_s, target, sink) -> the request."""


class SinkBase:
    """Base of the sinks of clients whose protocol has no head for answers."""

    __slots__ = ()

    is_ours: ClassVar[bool] = False

    def take_head(self, head: AnswerHead) -> None:
        """Ignore the head."""

    def fail(self, error: PipelineError) -> None:
        """Take the head of the error."""
        if error.head is not None:
            self.take_head(error.head)


class UnarySink(SinkBase):
    """Base of the sinks that take one answer: the parts of a stream come as one."""

    __slots__ = ()

    takes_parts: ClassVar[bool] = False

    def add(self, answers: Sequence[Any]) -> None:
        """Raise TypeError: a unary request never gets parts."""
        raise TypeError("a unary request has one answer")


class StreamSink(SinkBase):
    """Base of the sinks that take each part of a stream when it comes."""

    __slots__ = ()

    takes_parts: ClassVar[bool] = True


class AnswerFuture(UnarySink, asyncio.Future[Any]):
    """Sink that is a future of the answer; to cancel the future cancels the request.

    `head`: what user code adds to the answer's head; None: nothing. `failure`: why there is no
    answer.
    """

    __slots__ = ("failure", "head", "request")

    head: AnswerHead | None
    failure: PipelineError | None
    request: RequestHandle | None

    def end(self, answer: Any) -> None:
        """Set the result, and drop the request: its inputs may lie in scarce memory."""
        self.request = None
        self.set_result(answer)

    def take_head(self, head: AnswerHead) -> None:
        """Keep the head."""
        self.head = head

    def fail(self, error: PipelineError) -> None:
        """Keep the error and its head."""
        self.failure, self.head = error, error.head

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request also, and drop it."""
        was_pending = super().cancel(msg)
        if was_pending and (request := getattr(self, "request", None)) is not None:
            self.request = None
            request.cancel()
        return was_pending


def ask(
    begin: Begin,
    raw: Any,
    timeout_s: float | None = None,
    target: RequestTarget | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> AnswerFuture:
    """Begin a request and return the future of its answer."""
    answer = AnswerFuture(loop=loop)
    answer.head = answer.failure = None
    request = begin(raw, timeout_s, target, answer)
    answer.request = None if answer.done() else request
    return answer
