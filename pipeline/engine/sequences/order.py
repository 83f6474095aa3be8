"""The order of sequences: requests of one id come to each Op with sequences in the order of
arrival.

On the way they may overtake each other: at an Op with several workers, in a thread that unpacks, in
other batches. So each such Op has a ReorderBuffer before its book, and the engine a SequenceOrder,
which tells the buffers which requests will come and which will not. Of two requests the older one
never waits for the younger: it is admitted first, and held requests take no place in a scheduler. A
graph without sequences has none of this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.engine.filters import Filter
from pipeline.engine.journal.journal import FROM_OUTSIDE
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.run.payload import Absent
from pipeline.engine.sequences.book import Arrivals, SequenceBook, SequenceId
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    PipelineError,
    PredictorUnavailableError,
    WorkerDiedError,
)
from pipeline.op import Op

_STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
_LOSSES = (WorkerDiedError, DeadlineError, PredictorUnavailableError)
_COMES, _MISSED, _ENDS = "comes", "missed", "ends"

Enter = Callable[[Item, float], PipelineError | None]


class ReorderBuffer(Arrivals):
    """Holds requests that have overtaken others, before an Op's book of sequences.

    Args:
        book: does not count held requests.
        enter: takes a request whose turn it is, or returns why not.

    Attributes:
        held: number of requests that came before their turn.
        is_stopping: whether no sequence may begin any more; live ones continue.
        clock: seconds, as for schedulers.
        wake: called when requests were passed on outside of `add`, or may have been.
    """

    def __init__(self, book: SequenceBook, enter: Enter) -> None:
        self.held: int = 0
        self.is_stopping: bool = False
        self.clock: Callable[[], float] = lambda: 0.0
        self.wake: Callable[[], None] = lambda: None
        self._book = book
        self._add_to_book = enter
        # For each id the requests that have not passed, in order; a held request with its item.
        self._lines: dict[SequenceId, OrderedDict[RequestState, Item | str]] = {}
        # The errors for requests on their way to a sequence that has ended.
        self._endings: dict[SequenceId, PipelineError] = {}
        book.arrivals = self

    # Expected requests ------------------------------------------------------------------------

    def expect(self, request: RequestState) -> None:
        """Note an admitted request: later requests of its id wait for it."""
        id = request.info.sequence_id
        line = self._lines.get(id)
        if line is None:
            line = self._lines[id] = OrderedDict()
        line[request] = _COMES

    def note_missing(
        self, request: RequestState, reason: PipelineError | Absent | None = None
    ) -> None:
        """Note that a request will not come here, for some reason, or is over.

        If its client left, or it was lost before any Op saw it, its sequence misses a step. Its
        client may not know that if the next request is here already. So the sequence ends when it
        is the missing request's turn, and also if the request would have begun or ended it.
        """
        line = self._lines.get(request.info.sequence_id)
        if line is None or request not in line:
            return
        is_lost = isinstance(reason or request.error, _LOSSES) or request.outcome in FROM_OUTSIDE
        info = request.info
        is_lost |= line[request] is _MISSED
        if is_lost or info.sequence_start or info.sequence_end:
            line[request] = _MISSED
        else:
            del line[request]
        self._pass_on(line, request.info.sequence_id, self.clock())
        self.wake()

    def end(self, request: RequestState) -> None:
        """Note a request that only ends its sequence, after the others."""
        self.expect(request)
        id = request.info.sequence_id
        self._lines[id][request] = _ENDS
        self._pass_on(self._lines[id], id, self.clock())
        self.wake()

    def _pass_on(self, line: OrderedDict[RequestState, Any], id: SequenceId, now: float) -> None:
        """Pass on the first request of an id, if it is here; then the next one, and so on."""
        book = self._book
        while line:
            request, item = next(iter(line.items()))
            if item is _COMES:
                return
            del line[request]
            if item is _MISSED:
                book.miss(request)
                continue
            if item is _ENDS:
                book.end(id)
                continue
            self.held -= 1
            refusal = self._enter(item, now)
            if refusal is not None:
                book.refused.append((item, refusal))
        del self._lines[id]
        self._endings.pop(id, None)

    def is_awaited(self, id: SequenceId) -> bool:
        return id in self._lines

    def ended(self, id: SequenceId, error: PipelineError) -> None:
        if id in self._lines:
            self._endings[id] = error

    def _enter(self, item: Item, now: float) -> PipelineError | None:
        if self.is_stopping and item.info.sequence_start:
            return ClosedError(_STOPPING)
        if self._endings and item.info.sequence_id in self._endings:
            if not item.info.sequence_start:
                return self._endings[item.info.sequence_id]
            del self._endings[item.info.sequence_id]
        return self._add_to_book(item, now)

    # Requests that are here -------------------------------------------------------------------

    @property
    def has_live(self) -> bool:
        """Return whether a sequence has begun here and may continue."""
        return bool(self._lines) or self._book.state().live > 0

    @property
    def parked(self) -> int:
        """Return how many requests wait here for others, or for slots."""
        return self.held + self._book.parked

    def add(self, item: Item, now: float) -> PipelineError | None:
        """Pass on a request, or hold it; or return why its sequence is refused."""
        request, id = item.request, item.info.sequence_id
        line = self._lines.get(id)
        if line is None or request not in line:
            return self._enter(item, now)
        if len(line) == 1:  # the common case
            del self._lines[id]
            refusal = self._enter(item, now)
            if self._endings:
                self._endings.pop(id, None)
            return refusal
        if next(iter(line)) is not request:
            line[request] = item
            self.held += 1
            return None
        del line[request]
        refusal = self._enter(item, now)
        self._pass_on(line, id, now)
        return refusal

    def drop(self, request: RequestState) -> Item | None:
        """Forget a request, and return its item if it is held."""
        line = self._lines.get(request.info.sequence_id)
        item = None if line is None else line.get(request)
        if line is None or not isinstance(item, Item):
            return None
        line[request] = _MISSED
        self.held -= 1
        return item


class SequenceOrder(Filter):
    """Filter that announces all requests with an id to the reorder buffers, in order of arrival."""

    def __init__(self, buffers: Mapping[Op, ReorderBuffer]) -> None:
        super().__init__()
        self._buffers = buffers

    def parked(self) -> int:
        """Return how many requests wait for others at an Op: they need no place in the graph."""
        return sum(buffer.parked for buffer in self._buffers.values())

    def end(self, request: RequestState) -> None:
        """End a request's sequence at all Ops, after its other requests."""
        for buffer in self._buffers.values():
            buffer.end(request)

    def on_admission(self, request: RequestState) -> None:
        if not request.info.sequence_id:
            return
        only = None if request.target is None else request.target.op
        for op, buffer in self._buffers.items():
            if only is None or op is only:
                buffer.expect(request)

    def on_end(self, request: RequestState) -> None:
        id = request.info.sequence_id
        for buffer in self._buffers.values() if id else ():
            if buffer.is_awaited(id):
                buffer.note_missing(request)
