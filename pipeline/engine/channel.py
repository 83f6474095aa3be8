"""Channel: the inbox of one Op. Joins the parts of a request, keeps what is ready by age."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.data import RequestInfo
from pipeline.errors import GraphError, PipelineError

if TYPE_CHECKING:
    from pipeline.engine.request import RequestState


class Item(msgspec.Struct, eq=False):
    """One request's turn at one Op: what the Op reads, joined.

    `generation` is that of the request when the item was made: it differs as soon as the
    request was answered, cancelled or started again. `ready_at` is on the loop's
    clock, which may be as coarse as a millisecond, `ready_ns` is for the journal. With `is_feed`
    the inputs are for `process` itself. `lap` is the Op's
    for the request: it differs as soon as a jump back has the Op run again.
    """

    request: RequestState
    generation: int
    data_id: int
    log_id: int
    inputs: dict[str, Any]
    ready_at: float
    ready_ns: int = 0
    is_feed: bool = False
    lap: int = 0

    @property
    def is_over(self) -> bool:
        return self.generation != self.request.generation

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for it any more; may be asked in any thread."""
        return self.is_over

    @property
    def deadline(self) -> float | None:
        """When its caller stops waiting, in `time.monotonic`; None: never."""
        return self.request.deadline

    @property
    def info(self) -> RequestInfo:
        """What the caller of its request says beside the data."""
        return self.request.info

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
        self.producers: tuple[str, ...] = tuple(producers)
        self._has_one_producer = len(self.producers) == 1
        self._first_arrival = first_arrival
        self._parts: dict[RequestState, dict[str, Any]] = {}
        self._names: dict[RequestState, dict[str, str]] = {}  # of stand-ins, by producer
        self._ready: list[tuple[int, int, Item]] = []
        self._late: list[tuple[int, int, Item]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._late) if self._late else len(self._ready)

    @property
    def rows(self) -> int:
        """Samples of all that is ready."""
        return sum(entry[2].request.rows for entry in (*self._ready, *self._late))

    @property
    def waiting_for_parts(self) -> int:
        """Requests of which only some parts have arrived."""
        return len(self._parts)

    def join(
        self, request: RequestState, slot: str, part: Any, name: str | None = None
    ) -> dict[str, Any] | None:
        """Take the part of the producer `slot`; the request's inputs once complete, else None.

        A part is a payload or a `PipelineError`; inputs that hold an error are complete all
        the same, see `first_error`. `name` is that of the Op whose answer it is, where a jump
        stands in for the producer: the part is read under that name.
        """
        if self._has_one_producer:
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
        if names is None:
            return {producer: parts[producer] for producer in self.producers}
        return _by_name((names.get(slot, slot), parts[slot]) for slot in self.producers)

    def push(self, item: Item) -> None:
        """Queue an item whose inputs are complete."""
        self._pushed += 1
        bisect.insort(self._ready, (item.data_id, self._pushed, item))

    def pop(self, count: int, most_rows: int = 0) -> list[Item]:
        """Take up to `count` items, oldest request first; after them the late ones, newest first.

        With `most_rows` no more than so many samples in all, but for a request that alone brings
        more: none is passed over, and none is split.
        """
        ready, late = self._ready, self._late
        if count == 1 and ready:  # as nearly always
            return [ready.pop(0)[2]]
        first = ready[:count]
        after = late[: -1 - min(count - len(first), len(late)) : -1]
        taken = [entry[2] for entry in (*first, *after)]
        if most_rows and len(taken) > 1:
            del taken[_as_many_as_fit((item.request.rows for item in taken), most_rows) :]
        del ready[: len(taken)]
        if len(taken) > len(first):
            del late[len(first) - len(taken) :]
        return taken

    def set_aside(self, clock: Callable[[], float], turn_s: float) -> None:
        """Let those go last who have waited too long; see `admission.is_late`."""
        ready, count = self._ready, 0
        if not ready or ready[0][2].request.deadline is None:
            return
        now = clock()
        while count < len(ready) and ready[count][2].request.is_late(now, turn_s):
            count += 1
        if count:
            self._late += ready[:count]
            del ready[:count]

    def first_ready_at(self) -> float:
        """When the item that has been ready longest became so. Needs at least one item."""
        return min(entry[2].ready_at for entry in (*self._ready, *self._late))

    def discard_parts(self, request: RequestState) -> None:
        """Forget the parts that still wait for others."""
        self._parts.pop(request, None)
        if self._names:
            self._names.pop(request, None)

    def held_error(self, request: RequestState) -> PipelineError | None:
        """The first error among the parts that still wait for others, in producer order."""
        parts = self._parts.get(request, {})
        return first_error({slot: parts[slot] for slot in self.producers if slot in parts})

    def discard(self, request: RequestState) -> list[Item]:
        """Forget everything of a request that was answered, or is started anew.

        Returns what was ready of it.
        """
        self.discard_parts(request)
        entries = [*self._late, *self._ready]
        dropped = [entry[2] for entry in entries if entry[2].request is request]
        if dropped:
            self._ready = [entry for entry in self._ready if entry[2].request is not request]
            self._late = [entry for entry in self._late if entry[2].request is not request]
        return dropped


class Room:
    """The bound of the channels that one Op fills.

    An Op begins only what has a place behind it: what runs has been promised one in each of
    these channels.

    Args:
        channel_size: requests that may be ready in a channel; 0: any number.

    Attributes:
        behind: the channels that the Op fills; see `dispatcher.link`.
    """

    def __init__(self, channel_size: int) -> None:
        self.behind: tuple[Channel, ...] = ()
        self._channel_size = channel_size
        self._promised: set[Item] = set()

    def most(self, size: int) -> int:
        """How many of `size` requests may begin."""
        if not self.behind:
            return size
        longest = max(map(len, self.behind))
        return min(size, self._channel_size - longest - len(self._promised))

    def is_full(self, channel: Channel) -> bool:
        """Whether who fills `channel` has to wait."""
        return 0 < self._channel_size <= len(channel)

    def promise(self, items: Iterable[Item]) -> None:
        """Keep a place for the answer of each."""
        self._promised.update(items)

    def release(self, items: Iterable[Item]) -> None:
        """The places of `items` are taken by their answers, or not needed."""
        self._promised.difference_update(items)

    def release_request(self, request: RequestState) -> bool:
        """Nothing more will come of `request`; whether a place was kept for it."""
        kept = [item for item in self._promised if item.request is request]
        self.release(kept)
        return bool(kept)


class PassedOver(GraphError):
    """Stands for the part of an Op that a jump passed over; every other error goes before it."""


def first_error(inputs: dict[str, Any]) -> PipelineError | None:
    """The first error among the parts, in producer order."""
    passed_over = None
    for part in inputs.values():
        if isinstance(part, PipelineError):
            if not isinstance(part, PassedOver):
                return part
            passed_over = passed_over or part
    return passed_over


def _by_name(parts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The parts by name. Who stands in for another Op, and is read itself, is read once."""
    inputs: dict[str, Any] = {}
    for name, part in parts:
        if name not in inputs or _is_answer(part):
            inputs[name] = part
    return inputs


def _as_many_as_fit(rows: Iterable[int], most_rows: int) -> int:
    """How many, in order, have no more rows in all; at least one."""
    count = 0
    for brought in rows:
        most_rows -= brought
        if most_rows < 0 and count:
            break
        count += 1
    return count


def _is_answer(part: Any) -> bool:
    return not isinstance(part, PipelineError)
