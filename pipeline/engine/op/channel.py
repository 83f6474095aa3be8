"""Channel: the inbox of one Op, joins the parts of a request; Room, the bound of those it fills."""

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
    """One request at one Op: what the Op reads, joined.

    `generation` is that of the request when the item was made: it differs as soon as the
    request was answered, cancelled or started again. `ready_at` is on the loop's clock, which may
    be as coarse as a millisecond, `ready_ns` is for the journal. With `is_feed` the inputs are
    for `process` itself. `lap` is the Op's for the request: it differs as soon as a jump back has
    the Op run again. `entered` are the Ops that read the same and that it stands for, too. `found`
    says how its answer is to be kept.

    At an Op that `is_plain` it is the job of a worker, too. Then it has what came of it: the times
    of its stages, its `outcome`, and `apart`, the batch that it became when its worker was given
    up.
    """

    worker: ClassVar[None] = None  # any will do

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
    found: CacheLookup | None = None
    start_ns: int = 0
    preprocess_end_ns: int = 0
    process_end_ns: int = 0
    end_ns: int = 0
    outcome: Any = None
    apart: BatchJob | None = None

    def run(self, op: BoundOp, watch: object, clock_ns: Callable[[], int]) -> None:
        """Run both stages, unless its request is over."""
        if self.generation == self.request.generation:
            self.start_ns = clock_ns()
            self.outcome, middle_ns = op.plain(
                self.inputs, self.data_id, self.log_id, clock_ns, self
            )
            self.preprocess_end_ns = self.process_end_ns = middle_ns
            self.end_ns = clock_ns()

    @property
    def items(self) -> tuple[Item]:
        """Return itself, as any batch has items."""
        return (self,)

    def following(self, inputs: dict[str, Any], ready_ns: int) -> Item:
        """Return the same request at a later Op of a trip."""
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
        """Return whether nobody waits for it any more; may be asked in any thread."""
        return self.generation != self.request.generation

    @property
    def deadline(self) -> float | None:
        """Return when its caller stops waiting, in `time.monotonic`; None: never."""
        return self.request.deadline

    @property
    def convoy(self) -> Members | None:
        """Return the requests that its request is; None: it is one."""
        return self.request.convoy

    @property
    def info(self) -> RequestInfo:
        """Return what the caller of its request says beside the data."""
        return self.request.info

    @property
    def trace(self) -> str:
        """The traceparent of its request; "" for none."""
        return self.request.trace


class Channel:
    """The inbox of one Op: not thread-safe, lives on the event loop.

    `producers` are the names of the Ops that feed it, in the Op's order. A request is ready
    when each of them has delivered or, with `first_arrival`, when the first of them has
    delivered an answer: no error, nor an `Absent`.

    Attributes:
        repeats: those that answer once, while a loop has the Op run again and again.
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
        """Requests of which only some parts have arrived."""
        return len(self._parts)

    def join(
        self, request: RequestState, slot: str, part: Any, name: str | None = None
    ) -> dict[str, Any] | None:
        """Take the part of the producer `slot`; the request's inputs once complete, else None.

        A part is a payload, a `PipelineError` or an `Absent`, which is in the inputs only if
        nothing else is; inputs that hold an error are complete all the same, see `first_error`.
        `name` is that of the Op whose answer it is, where a jump stands in for the producer: the
        part is read under that name.
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
        for slot in self.producers:  # who stands in for another, and is read itself, is read once
            name, part = names.get(slot, slot), parts[slot]
            if name not in inputs or _is_answer(part):
                inputs[name] = part
        return present(inputs)

    def begin_lap(self, request: RequestState, again: Container[str]) -> None:
        """Forget the parts of the producers `again`; those of the others are there, once more."""
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
    """The bound of the channels that one Op fills.

    An Op begins only what has a place behind it: what runs has been promised one in each of
    these channels.

    Args:
        size: requests that may be ready in a channel; 0: any number.
        ready: those that are in the Op's own.

    Attributes:
        behind: what is ready in the channels that the Op fills; see `link`.
        held_back: those who wait for a place in the Op's own channel.
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
        """Keep a place for the answer of each."""
        self._promised.update(items)

    def release(self, items: Iterable[Item]) -> None:
        """Give up places that are taken by answers, or not needed."""
        self._promised.difference_update(items)

    def release_request(self, request: RequestState) -> bool:
        """Give up the places of a request that comes to nothing; return whether there were any."""
        kept = [item for item in self._promised if item.request is request]
        self.release(kept)
        return bool(kept)


def first_error(inputs: dict[str, Any]) -> PipelineError | Absent | None:
    """Return the first error among the parts, in producer order; or that there is nothing."""
    for part in inputs.values():
        if isinstance(part, _NO_ANSWER):
            return part
    return None


def own_dict(payload: Any) -> Any:
    """Return a dict that its reader may change unnoticed by others; the values are shared."""
    return dict(payload) if isinstance(payload, dict) else payload


def _is_answer(part: Any) -> bool:
    return not isinstance(part, _NO_ANSWER)
