"""The order of sequences: requests of one id come to each Op with sequences as they were asked.

On the way they may overtake each other: at an Op with several workers, unpacked in a thread, in
other batches. So each such Op has a ReorderBuffer before its book, and the engine a SequenceOrder,
which tells the turnstiles who will come and who will not. Of two requests the older one never waits
for the younger: it is admitted first, and what is held takes nobody's place in a scheduler. Nothing
of this is there in a graph without sequences.
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
    """Holds what has overtaken others, in front of an Op's book of sequences.

    Args:
        book: what is held does not count there.
        enter: takes a request whose turn it is, or returns why not.

    Attributes:
        held: requests that are here before their turn.
        is_stopping: whether no sequence may begin any more, while those that there are go on.
        clock: seconds, as the schedulers have them.
        wake: called when requests went on by themselves, or may have.
    """

    def __init__(self, book: SequenceBook, enter: Enter) -> None:
        self.held: int = 0
        self.is_stopping: bool = False
        self.clock: Callable[[], float] = lambda: 0.0
        self.wake: Callable[[], None] = lambda: None
        self._book = book
        self._go_in = enter
        # Of each id who has not come through, in order; with the item of who is held.
        self._lines: dict[SequenceId, OrderedDict[RequestState, Item | str]] = {}
        # What those are told who are on their way to a sequence that has ended.
        self._endings: dict[SequenceId, PipelineError] = {}
        book.arrivals = self

    # Who will come ------------------------------------------------------------------------------

    def expect(self, request: RequestState) -> None:
        """Take note that a request was asked: those of its id that follow wait for it."""
        id = request.info.sequence_id
        line = self._lines.get(id)
        if line is None:
            line = self._lines[id] = OrderedDict()
        line[request] = _COMES

    def comes_not(
        self, request: RequestState, reason: PipelineError | Absent | None = None
    ) -> None:
        """Take note that nothing of a request comes here, for some reason, or that it is over.

        If its caller left, or it was lost before anybody had looked at it, a step is missing of
        which its caller need not know when the next one is here already: the sequence ends, in its
        turn. So does one that it would have begun anew, or ended.
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
        self._let_in(line, request.info.sequence_id, self.clock())
        self.wake()

    def end(self, request: RequestState) -> None:
        """Take note of a request that is nothing but the end of its sequence, behind the others."""
        self.expect(request)
        id = request.info.sequence_id
        self._lines[id][request] = _ENDS
        self._let_in(self._lines[id], id, self.clock())
        self.wake()

    def _let_in(self, line: OrderedDict[RequestState, Any], id: SequenceId, now: float) -> None:
        """Let in the first request of an id, if it is here; then the next one, and so on."""
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
        return self._go_in(item, now)

    # Who is here --------------------------------------------------------------------------------

    @property
    def has_live(self) -> bool:
        """Return whether a sequence has begun here and may go on."""
        return bool(self._lines) or self._book.state().live > 0

    @property
    def parked(self) -> int:
        """Requests that are here and wait for others, be it for their slots."""
        return self.held + self._book.parked

    def add(self, item: Item, now: float) -> PipelineError | None:
        """Let a request in, or hold it; or return why its sequence cannot be."""
        request, id = item.request, item.info.sequence_id
        line = self._lines.get(id)
        if line is None or request not in line:
            return self._enter(item, now)
        if len(line) == 1:  # as nearly always
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
        self._let_in(line, id, now)
        return refusal

    def drop(self, request: RequestState) -> Item | None:
        """Forget a request, and return it if it is held."""
        line = self._lines.get(request.info.sequence_id)
        held = None if line is None else line.get(request)
        if line is None or not isinstance(held, Item):
            return None
        line[request] = _MISSED
        self.held -= 1
        return held


class SequenceOrder(Filter):
    """Filter that tells the turnstiles of all requests with an id, in the order of arrival."""

    def __init__(self, turnstiles: Mapping[Op, ReorderBuffer]) -> None:
        super().__init__()
        self._turnstiles = turnstiles

    def parked(self) -> int:
        """Return how many requests wait for others at an Op: they need no place in the graph."""
        return sum(turnstile.parked for turnstile in self._turnstiles.values())

    def end(self, request: RequestState) -> None:
        """End a request's sequence at all Ops, behind its other requests."""
        for turnstile in self._turnstiles.values():
            turnstile.end(request)

    def on_admission(self, request: RequestState) -> None:
        if not request.info.sequence_id:
            return
        only = None if request.target is None else request.target.op
        for op, turnstile in self._turnstiles.items():
            if only is None or op is only:
                turnstile.expect(request)

    def on_end(self, request: RequestState) -> None:
        id = request.info.sequence_id
        for turnstile in self._turnstiles.values() if id else ():
            if turnstile.is_awaited(id):
                turnstile.comes_not(request)
