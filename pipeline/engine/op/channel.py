"""Channel: the inbox of one Op, joins the parts of a request; ChannelBound: its limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pipeline.data import RequestInfo
from pipeline.engine.request import Members, Recipient, RequestState
from pipeline.engine.run.payload import Absent, present
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.op.answer_cache import CacheLookup
    from pipeline.engine.run.bound_op import BoundOp
    from pipeline.engine.run.job import BatchJob

_NO_ANSWER = (PipelineError, Absent)


class Item(msgspec.Struct, eq=False):
    """One request at one Op, with the joined inputs.

    An Op that `is_plain` has no batches: its worker runs the Item itself, which then has the times
    of its stages and its `outcome`.

    Attributes:
        generation: of the request when the item was made; it differs as soon as the request was
            answered, cancelled or started again.
        ready_at: on the loop's clock, which may be as coarse as a millisecond.
        ready_ns: the same for the journal.
        is_feed: the inputs are for `process` itself.
        lap: the request's lap at this Op; it differs as soon as a jump back runs the Op again.
        entered: other Ops that read the same inputs and that the item also stands for.
        lookup: how to cache its answer.
        apart: the batch that it became when its worker was given up.
    """

    worker: ClassVar[None] = None  # any worker

    request: RequestState
    generation: int
    data_id: int
    log_id: int
    inputs: dict[str, Any]
    ready_at: float
    ready_ns: int = 0
    is_feed: bool = False
    lap: int = 0
    entered: tuple[Recipient, ...] = ()
    lookup: CacheLookup | None = None
    start_ns: int = 0
    preprocess_end_ns: int = 0
    process_end_ns: int = 0
    end_ns: int = 0
    outcome: Any = None
    apart: BatchJob | None = None

    def run(self, op: BoundOp, watch: object, clock_ns: Callable[[], int]) -> None:
        """Run both stages, unless the request has ended."""
        if self.generation == self.request.generation:
            self.start_ns = clock_ns()
            self.outcome, middle_ns = op.plain(
                self.inputs, self.data_id, self.log_id, clock_ns, self
            )
            self.preprocess_end_ns = self.process_end_ns = middle_ns
            self.end_ns = clock_ns()

    @property
    def items(self) -> tuple[Item]:
        """Return the item itself, as every batch has items."""
        return (self,)

    def following(self, inputs: dict[str, Any], ready_ns: int) -> Item:
        """Return the item of the same request at a later Op of a trip."""
        return Item(
            self.request,
            self.generation,
            self.data_id,
            self.log_id,
            inputs,
            self.ready_at,
            ready_ns,
        )

    @property
    def is_over(self) -> bool:
        return self.generation != self.request.generation

    @property
    def is_alone(self) -> bool:
        """Return whether its request is for this Op alone."""
        target = self.request.target
        return target is not None and target.op is not None

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for it any more; callable in any thread."""
        return self.generation != self.request.generation

    @property
    def deadline(self) -> float | None:
        """Return when the client stops waiting, in `time.monotonic`; None: never."""
        return self.request.deadline

    @property
    def convoy(self) -> Members | None:
        """Return the convoy of the request; None: it is a single request."""
        return self.request.convoy

    @property
    def info(self) -> RequestInfo:
        """Return the parameters, headers and so on of its request."""
        return self.request.info

    @property
    def trace(self) -> str:
        """Return the traceparent of its request; "" for none."""
        return self.request.trace


class Channel:
    """The inbox of one Op. It lives on the event loop and is not thread-safe.

    `producers` are the names of the Ops that it reads, in the Op's order. A request is ready when
    all of them have delivered or, with `first_arrival`, when the first has delivered an answer that
    is neither an error nor an `Absent`.

    Attributes:
        repeats: producers that answer once, while a loop runs the Op several times.
    """

    def __init__(self, producers: Sequence[str], first_arrival: bool = False) -> None:
        self.producers: tuple[str, ...] = tuple(producers)
        self.is_join: bool = len(self.producers) > 1
        self._first_arrival = first_arrival
        self._parts: dict[RequestState, dict[str, Any]] = {}
        self._names: dict[RequestState, dict[str, str]] = {}  # of stand-ins, by producer
        self.repeats: frozenset[str] = frozenset()
        self._kept: dict[RequestState, dict[str, Any]] = {}

    @property
    def waiting_for_parts(self) -> int:
        """Return the number of requests of which only some parts have arrived."""
        return len(self._parts)

    def join(
        self, request: RequestState, slot: str, part: Any, name: str | None = None
    ) -> dict[str, Any] | None:
        """Take the part of the producer `slot`; return the inputs once complete, otherwise None.

        A part is a payload, a `PipelineError` or an `Absent`; the inputs contain an Absent only if
        they contain nothing else. Inputs with an error count as complete, see `first_error`. `name`
        is the Op that jumped in the producer's place: the part is read under that name.
        """
        if not self.is_join:
            return {name or slot: part}
        parts = self._parts.setdefault(request, {})
        won = self._first_arrival and any(map(_is_answer, parts.values()))
        parts[slot] = part
        if name is not None:
            self._names.setdefault(request, {})[slot] = name
        names = self._names.get(request) if self._names else None
        is_complete = len(parts) == len(self.producers)
        if is_complete:
            self.discard_parts(request)
        if won:
            return None
        if self._first_arrival and _is_answer(part):
            return {name or slot: part}
        if not is_complete:
            return None
        if self.repeats:
            self._kept[request] = {slot: own_dict(parts[slot]) for slot in self.repeats}
        if names is None:
            return present({producer: parts[producer] for producer in self.producers})
        inputs: dict[str, Any] = {}
        # an Op that stands in for another, and is also read itself, is read once
        for slot in self.producers:
            name, part = names.get(slot, slot), parts[slot]
            if name not in inputs or _is_answer(part):
                inputs[name] = part
        return present(inputs)

    def begin_lap(self, request: RequestState, again: Container[str]) -> None:
        """Forget the parts of the producers `again`; the parts of the others stay for this lap."""
        parts = {**self._kept.get(request, {}), **self._parts.get(request, {})}
        self.discard_parts(request)
        left = {slot: own_dict(part) for slot, part in parts.items() if slot not in again}
        if left:
            self._parts[request] = left

    def discard_parts(self, request: RequestState) -> None:
        """Forget the parts that still wait for others."""
        self._parts.pop(request, None)
        if self._names:
            self._names.pop(request, None)
        if self._kept:
            self._kept.pop(request, None)

    def held_error(self, request: RequestState) -> PipelineError | None:
        """Return the first error among the parts that still wait for others, in producer order."""
        parts = self._parts.get(request, {})
        held = (parts.get(slot) for slot in self.producers)
        return next((part for part in held if isinstance(part, PipelineError)), None)


class ChannelBound:
    """The limit of the channels that one Op fills.

    An Op begins a request only if it can promise its answer a place in each of these channels.

    Args:
        size: how many requests may be ready in a channel; 0: any number.
        ready: the requests in the Op's own channel.

    Attributes:
        behind: the ready requests in the channels that the Op fills; see `link`.
        held_back: the Ops that wait for a place in the Op's own channel.
    """

    def __init__(self, size: int, ready: Sized) -> None:
        self.size: int = size
        self._ready = ready
        self.behind: tuple[Sized, ...] = ()
        self.held_back: tuple[Recipient, ...] = ()
        self._promised: set[Item] = set()

    @property
    def is_full(self) -> bool:
        """Return whether producers have to wait before they send more."""
        return 0 < self.size <= len(self._ready)

    def places(self) -> int:
        """Return how many requests may begin."""
        if not self.behind:
            return sys.maxsize
        return self.size - max(map(len, self.behind)) - len(self._promised)

    def promise(self, items: Iterable[Item]) -> None:
        """Reserve a place for the answer of each item."""
        self._promised.update(items)

    def release(self, items: Iterable[Item]) -> None:
        """Give back places that answers have taken, or that are not needed."""
        self._promised.difference_update(items)

    def release_request(self, request: RequestState) -> bool:
        """Give back the places of a request that ends early; return whether it had any."""
        kept = [item for item in self._promised if item.request is request]
        self.release(kept)
        return bool(kept)


def first_error(inputs: dict[str, Any]) -> PipelineError | Absent | None:
    """Return the first error or Absent among the parts, in producer order; None: there is none."""
    for part in inputs.values():
        if isinstance(part, _NO_ANSWER):
            return part
    return None


def own_dict(payload: Any) -> Any:
    """Return a dict that its reader may change without effect on others; the values are shared."""
    return dict(payload) if isinstance(payload, dict) else payload


def _is_answer(part: Any) -> bool:
    return not isinstance(part, _NO_ANSWER)
