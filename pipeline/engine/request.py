"""RequestState: one request, as an engine knows it; and the sink that takes its answer.

Both are changed on the event loop only, but for what a request's unpack finds out.
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
"""Data ids begin anew there."""

_LATE_SHARE = 0.5  # of its time has passed when a request goes behind the others


class ModelView(Protocol):
    """A model of the server, which a request asks.

    Attributes:
        ops: those of the graph that it is; None: it is one Op alone.
        begin: begins a request at it.
    """

    name: str
    version: str

    @property
    def ops(self) -> Sequence[Op] | None: ...
    @property
    def begin(self) -> Begin: ...


class TraceCollector(Protocol):
    """Takes down what becomes of one request, for a trace."""

    def attach(self, request: RequestState) -> None:
        """Look at the request, which has just come; `spans` of it are to be the collector's."""

    def asks(self, model: ModelView, request_id: str, inputs: Mapping[str, Any]) -> Begin:
        """Return what begins a request that this one asks of another model."""


class Recipient(Protocol):
    """An Op, as seen by code that hands it requests, or counts how many it got."""

    name: str
    is_dirty: bool

    def schedule(self) -> None:
        """Hand out all batches that should leave now."""

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
    """Requests that were asked for the members of a convoy."""

    def leave(self, place: int) -> None:
        """Take note that the caller of one of them has left."""


class Members(Protocol):
    """Requests that one request is; see `convoy.Convoy`."""

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
    def came(self, answer: Any, op: str) -> None: ...
    def comes_again(self, error: PipelineError | None) -> bool: ...
    def ending(self, error: PipelineError | None) -> Sequence[int]: ...
    def endings(self, outcome: Any) -> Sequence[bytes]: ...
    def tell(self, observers: EngineObservers, request: RequestState, target: int) -> bool: ...


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
    """Path of a request that does not just come by the RequestOp and go by the ResponseOp.

    Args:
        op: this Op alone works on it; None: the whole graph.
        payload: what the RequestOp would have returned, which is not asked then; with `op` its
            `input_dicts`, or with `raw_inputs` what its `process` is fed.
        raw_inputs: see `payload`; neither preprocess nor postprocess runs.
        wants_response: False: the answer is the ChannelData itself, the ResponseOp is not asked.
        rows: samples that it brings.
        traceparent: its caller's, as W3C Trace Context writes it; "" for none.
        is_large: what it brings is too much to be unpacked on the event loop.
        info: what its caller says beside the data; None: nothing.
        is_text: numbers in `payload` came as text, which a schema converts.
        collector: of what becomes of it; None: it is not traced in a file.
        convoy: requests that it is, of which `payload` has all samples; None: it is one.
        takes_views: large bytes in the answer may be memoryviews.
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


class Phase(enum.IntEnum):
    """State of a request between the frontend and its answer."""

    ARRIVED = 0
    QUEUED = 1  # waits to be admitted to the graph
    ACTIVE = 2  # is unpacked, or worked on by Ops
    PACKING = 3  # its result is known: whatever is still on its way does not count
    ENDED = 4  # answered, or its caller has left


ARRIVED, QUEUED, ACTIVE, PACKING, ENDED = Phase  # an Enum's own attributes are slow to get at

LEGAL_STEPS: tuple[tuple[Phase, ...], ...] = (
    (QUEUED, ACTIVE, ENDED),  # of ARRIVED
    (ACTIVE, ENDED),  # of QUEUED
    (PACKING, ENDED),  # of ACTIVE; a request that starts over stays there
    (ENDED,),  # of PACKING
    (),  # of ENDED
)
"""The phases that may follow each; a tuple, since an Enum's hash takes a call of Python's."""


def report_illegal_step(request: RequestState, phase: Phase) -> None:
    """Log a step that is not legal; the suite raises instead.

    A server goes on: an exception here would lose the other requests of a batch.
    """
    _LOGGER.error(
        "(data_id=%d) illegal step from %s to %s", request.data_id, request.phase.name, phase.name
    )


class RequestDetours(msgspec.Struct, eq=False):
    """Jumps and loops of one request.

    Attributes:
        settled: targets of jumps that have answered, or for which a jump stood in.
        laps: how often jumps back and loops have had an Op run again.
        loops: how often each Op has looped.
    """

    settled: set[Recipient] = field(default_factory=set)
    laps: Counter[Recipient] = field(default_factory=Counter)
    loops: Counter[Recipient] = field(default_factory=Counter)


class RequestState(msgspec.Struct, eq=False):
    """One request between the frontend and its answer.

    `live` counts the Ops that it is queued at or worked on by. `generation` counts its starts: it
    is raised by a retry of the whole request and set to `OVER` when its result is known, so that
    whatever still carries an older number is dropped. `timeout_s` is what its caller gives;
    `asked_at`, which is known if there is a deadline, and `deadline` are in `time.monotonic`. The
    times are `time.monotonic_ns`, see `engine.journal.REQUEST`; the last three are sums over its
    spans. `spans` has these, packed, where somebody asked for them, its caller if it `is_profiled`;
    `way` all of them, where it went through all Ops in one go: their TripRows, and what these want
    of it; the sums have none of them then, see `stages_ns`. `trace` is its own traceparent; "" if
    it is not traced. `detours`: what it has jumped and looped, if it has. `stream`: where the graph
    has streams, how far those of this request are. `judged_by`: of the Op that might have refused
    it before it was admitted.
    `convoy`: those that it is, if it is several; `count`: how many. `info`: words of its
    caller beside the data. `head`: what an Op says of the head of its answer.
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
    asked_at: float = 0.0
    deadline: float | None = None
    deadline_timer: asyncio.TimerHandle | None = None
    outcome: int = Outcome.OK
    error: PipelineError | None = None
    admitted_ns: int = 0
    dispatched_ns: int = 0
    completed_ns: int = 0
    end_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    spans: list[bytes] | None = None
    is_profiled: bool = False
    way: tuple[TripRowForm, tuple[int, ...]] | None = None
    trace: str = ""
    detours: RequestDetours | None = None
    stream: RequestStream | None = None
    judged_by: object | None = None
    convoy: Members | None = None
    count: int = 1
    info: RequestInfo = NO_INFO
    head: AnswerHead | None = None

    def detoured(self) -> RequestDetours:
        """Return its jumps and loops, which may be its first."""
        self.detours = detoured = self.detours or RequestDetours()
        return detoured

    def lap(self, node: Recipient) -> int:
        """Return how often an Op runs again for it, now."""
        return 0 if self.detours is None else self.detours.laps[node]

    def stages_ns(self) -> tuple[int, int, int]:
        """Return the sums over its spans, once it has ended."""
        if self.way is not None:
            (rows, times), self.way = self.way, None
            rows.add_times(self, times)
        return self.input_ns, self.infer_ns, self.output_ns

    def advance(self, phase: Phase) -> None:
        """Go on to `phase`."""
        if phase not in LEGAL_STEPS[self.phase]:
            report_illegal_step(self, phase)
        self.phase = phase

    def cancel(self) -> None:
        """Drop the request, whose caller has left; does nothing once it is answered."""
        self.engine.cancel(self)

    def tell(self, answer: Any, error: PipelineError | None) -> None:
        """End the sink with an answer, and its head, or with what tells an error."""
        if error is not None:
            self.sink.fail(with_head(error))
        elif self.head is not None:
            self.sink.say(self.head)
        self.sink.end(answer)

    def took_part(self, count: int = 1) -> None:
        """Take note that parts of the answer are on their way to the caller: others may follow."""
        stream = self.stream
        if stream is not None and stream.out is not None and self.phase is ACTIVE:
            stream.out.took(self, count=count)

    def blame(self, error: PipelineError, outcome: Outcome) -> None:
        """Take down why the request fails, unless it has failed before."""
        if self.error is None:
            self.error, self.outcome = error, outcome

    def is_late(self, now: float, span_s: float = 0.0) -> bool:
        """Return whether newer requests go first; see `is_late`."""
        deadline = self.deadline
        return deadline is not None and is_late(now, self.asked_at, deadline, span_s)


def is_late(now: float, asked_at: float, deadline: float, span_s: float = 0.0) -> bool:
    """Return whether a request has waited so long that all others go first, newer late ones too.

    Who has used up half of the time, or has less left than a span takes, would be too late as a
    rule, and make all behind it late too.
    """
    return now >= min(asked_at + (deadline - asked_at) * _LATE_SHARE, deadline - span_s)


class ResponseSink(Protocol):
    """Receiver of a request's answer, on the event loop; it must not block.

    A sink is ended once, maybe before `Engine.begin` returns, and gets nothing after that. The
    sink of a request that was cancelled gets nothing at all. Parts come only to those whose
    `takes_parts` is true, and never before `Engine.begin` has returned; for each of them
    `took_part` of the request is to be called, or there are no more.
    """

    @property
    def is_ours(self) -> bool:
        """Return whether the server itself asks: it reads errors in full."""

    @property
    def takes_parts(self) -> bool:
        """Return whether it takes the parts of a stream; else they come as one answer."""

    def say(self, head: AnswerHead) -> None:
        """Take what user code says of the answer's head; the end follows at once."""

    def fail(self, error: PipelineError) -> None:
        """Take the error why there is no answer; the end, which tells it, follows at once.

        Its text is not for callers: what they may read is in the end.
        """

    def add(self, answers: Sequence[Any]) -> None:
        """Take answers of a stream, in order, that are there at once; others follow, or the end."""

    def end(self, answer: Any) -> None:
        """Take the last answer, which of a unary request is the only one, or an error's.

        None: the answer was a stream, all of whose parts were given.
        """


class RequestHandle(Protocol):
    """A request that has begun."""

    def cancel(self) -> object:
        """Drop the request, whose caller has left; does nothing once it is answered."""


class StreamHandle(RequestHandle, Protocol):
    """A request that has begun, and may be answered in parts."""

    def took_part(self, count: int = 1) -> None:
        """Take note that parts of the answer are on their way to the caller: others may follow."""


Begin = Callable[[Any, float | None, RequestTarget | None, ResponseSink], RequestHandle]
"""`Engine.begin`: (raw, timeout_s, target, sink) -> the request."""


class SinkBase:
    """Base of the sinks of callers whose answers have no head."""

    __slots__ = ()

    is_ours: ClassVar[bool] = False

    def say(self, head: AnswerHead) -> None:
        """Ignore it."""

    def fail(self, error: PipelineError) -> None:
        """Take the head that the error says."""
        if error.head is not None:
            self.say(error.head)


class UnarySink(SinkBase):
    """Base of the sinks that take one answer: the parts of a stream come as one."""

    __slots__ = ()

    takes_parts: ClassVar[bool] = False

    def add(self, answers: Sequence[Any]) -> None:
        """Refuse what a unary request never gets."""
        raise TypeError("a unary request has one answer")


class StreamSink(SinkBase):
    """Base of the sinks that take the parts of a stream, each as it comes."""

    __slots__ = ()

    takes_parts: ClassVar[bool] = True


class AnswerFuture(UnarySink, asyncio.Future[Any]):
    """Sink of a request whose answer is awaited; whoever cancels the future cancels the request.

    `head`: what user code says of the answer's head; None: nothing. `failure`: why there is none.
    """

    __slots__ = ("failure", "head", "request")

    head: AnswerHead | None
    failure: PipelineError | None
    request: RequestHandle | None

    def end(self, answer: Any) -> None:
        """Give it to who waits, and let go of the request: inputs may lie in scarce memory."""
        self.request = None
        self.set_result(answer)

    def say(self, head: AnswerHead) -> None:
        """Keep it."""
        self.head = head

    def fail(self, error: PipelineError) -> None:
        """Keep it."""
        self.failure, self.head = error, error.head

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request, too, and let go of it."""
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
    """Begin a request whose answer is awaited."""
    answer = AnswerFuture(loop=loop)
    answer.head = answer.failure = None
    request = begin(raw, timeout_s, target, answer)
    answer.request = None if answer.done() else request
    return answer
