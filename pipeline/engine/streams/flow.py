"""Parts, which pass along edges that stream; and how far the streams of a request are ahead.

Everything runs on the event loop, except for the values themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import field

from pipeline.engine.run.payload import Absent, opened
from pipeline.engine.streams.combine import PartCounter
from pipeline.errors import PipelineError
from pipeline.routes import Routed

if TYPE_CHECKING:
    from pipeline.engine.request import Recipient, RequestState


class Part(msgspec.Struct, frozen=True, eq=False):
    """One answer of a stream; `number` counts the parts of its request, from 0."""

    number: int
    payload: Any


class Bundle(msgspec.Struct, eq=False):
    """Consecutive parts of one request that go together.

    Attributes:
        times_ns: when each was made; empty: now.
        bytes: approximate size of all; 0: they were not counted.
    """

    parts: list[Any] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    bytes: int = 0


def apart(entries: Iterable[tuple[int, Any]]) -> Iterable[tuple[int, Any]]:
    """Yield the entries of a run with each part by itself."""
    for place, outcome in entries:
        if type(outcome) is Bundle:
            yield from ((place, part) for part in outcome.parts)
        else:
            yield place, outcome


def together(made: deque[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Take the entries of a run: consecutive parts of one request become a Bundle.

    Other threads may add entries meanwhile.
    """
    groups: list[tuple[int, Any]] = []
    last, bundle = -1, Bundle()
    for _ in range(len(made)):
        place, outcome = made.popleft()
        if outcome is ENDED or isinstance(outcome, PipelineError | Routed):
            groups.append((place, outcome))
            last = -1
        elif place == last:
            bundle.parts.append(outcome)
        else:
            last, bundle = place, Bundle([outcome])
            groups.append((place, bundle))
    return groups


def opened_part(message: Any) -> Any:
    """Return a message with an opened payload, or the error of opening it."""
    if not isinstance(message, Part):
        return opened(message)
    payload = opened(message.payload)
    return payload if isinstance(payload, PipelineError) else Part(message.number, payload)


class _Ended:
    def __repr__(self) -> str:
        return "ENDED"


End = tuple["Recipient | None", str]
"""Place where a stream ends, see `StreamPlan.ends`."""

OUT: End = (None, "")
"""The end at which a request is answered."""


class Maker(Protocol):
    """An Op that makes a stream."""

    name: str

    def took(self, request: RequestState, end: End = OUT, count: int = 1) -> None:
        """Note that parts were taken at an end; there may be room for others."""


ALL = 1 << 62
"""More parts than there can be: for an end that takes no more, so that no source waits for it."""

UNWANTED = -1
"""The value in `StreamRun.allowed` of an item whose stream has failed elsewhere."""

ENDED = _Ended()
"""Follows the last part of a stream that succeeded; a stream that failed has its error instead."""


class Flow(msgspec.Struct, eq=False):
    """One stream of one request: how many parts were sent, and taken at its ends.

    Attributes:
        maker: the Op's dispatcher.
        taken: the number of parts taken at each of its ends.
        sent_ns: when the last part was sent.
        is_answer: whether its parts are the answer.
        run: the run that makes them.
        place: of the request in that run.
        has_left: whether the request has left its run.
    """

    maker: Maker
    taken: dict[End, int]
    sent: int = 0
    sent_ns: int = 0
    is_answer: bool = False
    run: Any = None
    place: int = 0
    has_left: bool = False

    @property
    def slowest(self) -> int:
        """Return how many parts all ends have taken."""
        return min(self.taken.values())

    def begin(self, run: Any, place: int) -> Flow:
        """Set the run that makes the next parts; return this flow."""
        self.run, self.place, self.has_left = run, place, False
        return self

    def first_room(self, window: int) -> int:
        """Return how many parts a run that begins may make."""
        slowest = self.slowest
        return UNWANTED if slowest >= ALL else slowest + window - self.sent


class RequestStream(msgspec.Struct, eq=False):
    """The streams of one request, and the way of its answer to the client.

    Attributes:
        out: the stream that is the answer; None: the answer comes at once.
        is_for_one_op: whether the request is for one Op alone.
        waiting: parts of the answer that are not packed yet, and its end.
        is_packing: whether a part is being packed.
        is_passing: whether a call is processing `waiting` now.
        is_plain: whether short texts need only `pack_short`; known after the first part.
        changes: for each part; see `Filter.on_answer`.
        collected: parts for the one answer; `kept` counts them.
        absent: of a part that went elsewhere.
        given: number of parts given to the sink; `given_ns`: when the last was given.
        made_ns: when the part that is being packed was made.
        has_last: whether a part was marked as the last.
        due_at: the deadline of the next part, on the loop's clock; None: no deadline.
        limit_s: the time that it had until then; `is_first`: whether it is the first part.
        timer: for `due_at`.
    """

    flows: dict[Maker, Flow] = field(default_factory=dict)
    out: Maker | None = None
    is_for_one_op: bool = False
    waiting: deque[Any] = field(default_factory=deque)
    is_packing: bool = False
    is_passing: bool = False
    is_plain: bool = False
    changes: Sequence[Callable[..., Any]] = ()
    collected: list[Any] = field(default_factory=list)
    kept: PartCounter = field(default_factory=PartCounter)
    absent: Absent | None = None
    given: int = 0
    given_ns: int = 0
    made_ns: int = 0
    has_last: bool = False
    due_at: float | None = None
    limit_s: float = 0.0
    is_first: bool = True
    timer: Any = None

    def first_of(self, parts: Sequence[Any]) -> Any:
        """Return the first of some parts; the others are next in `waiting`, each by itself."""
        if len(parts) > 1:
            self.waiting.extendleft(Bundle([part]) for part in parts[:0:-1])
        return parts[0]

    def restart(self) -> int:
        """Reset, because the request starts again; return the number of its holders: one."""
        self.flows.clear()
        self.waiting.clear()
        self.collected.clear()
        self.is_packing, self.kept = False, PartCounter()
        return 1
