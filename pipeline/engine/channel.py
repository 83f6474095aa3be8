"""Channel: the inbox of one Op. Joins the parts of a request, keeps what is ready by age."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.request import InFlight


class Item(msgspec.Struct, eq=False):
    """One request's turn at one Op: what the Op reads, joined.

    `generation` is that of the request when the item was made: it differs as soon as the
    request was answered, cancelled or started again. `ready_at` is on the loop's
    clock, which may be as coarse as a millisecond, `ready_ns` is for the journal. With `is_feed`
    the inputs are for `process` itself.
    """

    request: InFlight
    generation: int
    data_id: int
    log_id: int
    inputs: dict[str, Any]
    ready_at: float
    ready_ns: int = 0
    is_feed: bool = False

    @property
    def is_over(self) -> bool:
        return self.generation != self.request.generation

    @property
    def deadline(self) -> float | None:
        """When its caller stops waiting, in `time.monotonic`; None: never."""
        return self.request.deadline

    @property
    def trace(self) -> str:
        """The traceparent of its request; "" for none."""
        return self.request.trace


class Channel:
    """The inbox of one Op: not thread-safe, lives on the event loop.

    `producers` are the names of the Ops that feed it, in the Op's order. A request is ready
    when each of them has delivered or, with `first_arrival`, when the first of them has
    delivered something that is no error.
    """

    def __init__(self, producers: Sequence[str], first_arrival: bool = False) -> None:
        self.producers = tuple(producers)
        self._has_one_producer = len(self.producers) == 1
        self._first_arrival = first_arrival
        self._parts: dict[InFlight, dict[str, Any]] = {}
        self._ready: list[tuple[int, int, Item]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def waiting_for_parts(self) -> int:
        """Requests of which only some parts have arrived."""
        return len(self._parts)

    def join(self, request: InFlight, producer: str, part: Any) -> dict[str, Any] | None:
        """Take `producer`'s part; the request's inputs once they are complete, else None.

        A part is a payload or a `PipelineError`; inputs that hold an error are complete all
        the same, see `first_error`.
        """
        if self._has_one_producer:
            return {producer: part}
        parts = self._parts.setdefault(request, {})
        won = any(not isinstance(other, PipelineError) for other in parts.values())
        parts[producer] = part
        complete = len(parts) == len(self.producers)
        if complete:
            del self._parts[request]
        if not self._first_arrival:
            return self._in_producer_order(parts) if complete else None
        if won:
            return None
        if isinstance(part, PipelineError):
            return self._in_producer_order(parts) if complete else None
        return {producer: part}

    def join_as(
        self, request: InFlight, slot: str, producer: str, part: Any
    ) -> dict[str, Any] | None:
        """`join` for an Op that jumped: it takes the place of `slot` under its own name."""
        inputs = self.join(request, slot, part)
        if inputs is None:
            return None
        return {producer if name == slot else name: value for name, value in inputs.items()}

    def _in_producer_order(self, parts: dict[str, Any]) -> dict[str, Any]:
        return {name: parts[name] for name in self.producers if name in parts}

    def push(self, item: Item) -> None:
        """Queue an item whose inputs are complete."""
        self._pushed += 1
        heapq.heappush(self._ready, (item.data_id, self._pushed, item))

    def pop(self, count: int) -> list[Item]:
        """Take up to `count` items, oldest request first."""
        ready = self._ready
        if count == 1:
            return [heapq.heappop(ready)[2]] if ready else []
        return [heapq.heappop(ready)[2] for _ in range(min(count, len(ready)))]

    def first_ready_at(self) -> float:
        """When the item that has been ready longest became so. Needs at least one item."""
        return min(entry[2].ready_at for entry in self._ready)

    def discard_parts(self, request: InFlight) -> None:
        """Forget the parts that still wait for others."""
        self._parts.pop(request, None)

    def discard(self, request: InFlight) -> list[Item]:
        """Forget everything of a request that was answered, or is started anew.

        Returns what was ready of it.
        """
        self.discard_parts(request)
        kept = [entry for entry in self._ready if entry[2].request is not request]
        if len(kept) == len(self._ready):
            return []
        dropped = [entry[2] for entry in self._ready if entry[2].request is request]
        heapq.heapify(kept)
        self._ready = kept
        return dropped


def first_error(inputs: dict[str, Any]) -> PipelineError | None:
    """The first error among the parts, in producer order."""
    for part in inputs.values():
        if isinstance(part, PipelineError):
            return part
    return None
