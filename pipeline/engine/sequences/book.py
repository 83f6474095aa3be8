"""SequenceBook: the live sequences of one Op, their slots, and the sequences that wait for one.

A sequence consists of the requests with one `sequence_id`, from the one with `sequence_start` to
the one with `sequence_end`. It has one slot at one worker from its first request to its last, and
at most one of its requests runs at a time. Pure, as all schedulers are; see `schedulers.base`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import field

from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.sequences.slots import Backlog, Chains, SequenceSlot, Slots, timeout_of
from pipeline.engine.state import SequencesState
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InputError,
    OverloadedError,
    PipelineError,
    RequestCancelledError,
    WorkerDiedError,
)

_LOGGER = logging.getLogger(__name__)


SequenceId: TypeAlias = int | str

_OF_TRITON = {
    "id": "inference request to model '{op}' must specify a non-zero or non-empty correlation ID",
    "rows": "inference request to model '{op}' must specify batch-size 1 due to requirements of "
    "sequence batcher",
    "start": "inference request for sequence {id} to model '{op}' must specify the START flag on "
    "the first request of the sequence",
}
_OURS = {  # for clients of other protocols than v2
    "id": "Op '{op}' has sequences: a request needs a sequence_id, a number that is not 0 or a "
    "text",
    "rows": "Op '{op}' has sequences: a request must have one row",
    "start": "Op '{op}' knows no sequence {id}: its first request must have sequence_start: "
    "true. A sequence ends after sequence_end, and after max_idle_ms without a request",
}

EXPIRED = "timeout of the corresponding sequence has been expired"


class LiveSequence(msgspec.Struct, eq=False):
    """One sequence that has begun and has not ended.

    Attributes:
        order: number of its first request: the oldest goes first.
        slot: None: it waits in the backlog, or after an older sequence of its id.
        queue: its requests that do not run yet, in order.
        running: the request that runs.
        has_end: whether its last request has come.
        is_over: whether it continues no more, and only waits for `running`.
        fate: the field of SequencesState that counts it after its end.
        kept: its states after its last step, by name, or a payload with them; None: unknown. Only
            used if its worker does not have them, or was lost.
        is_moved: whether its worker has to get them.
        tries: how often its next request was lost with a worker, alone.
        is_suspect: whether its next request was lost together with others: it runs alone.
    """

    id: SequenceId
    order: int
    slot: SequenceSlot | None = None
    queue: deque[Item] = field(default_factory=deque)
    running: Item | None = None
    has_end: bool = False
    is_over: bool = False
    fate: str = "ended"
    kept: Any = field(default_factory=dict)
    is_moved: bool = False
    tries: int = 0
    is_suspect: bool = False


class Arrivals:
    """Requests on their way to an Op with sequences: none. Base of a class that knows them."""

    def is_awaited(self, id: int | str) -> bool:
        """Return whether a request of a sequence is on its way: then it is not idle."""
        return False

    def ended(self, id: int | str, error: PipelineError) -> None:
        """Note that a sequence ended before its end, and why."""


_LEAST_TRIES = 3
"""A request that was lost alone with so many workers is not tried again."""

Ready: TypeAlias = tuple[float, int, LiveSequence]
"""Time since when a sequence's next request is ready, that request's number, the sequence."""


class SequenceBook:
    """The sequences of one Op.

    With `checkpoint` it has their states: a sequence whose worker was lost waits for another slot,
    as the oldest of the backlog, and its first batch there brings the states. The request that was
    running runs again, alone if others ran with it, because any of them may have caused the loss.

    Args:
        op_name: for error texts.
        slots: at each worker.
        max_idle_s: a sequence without requests for so long loses its slot.
        keeps: whether it gets the states of sequences after each step.

    Attributes:
        queued: number of requests that are here and do not run.
        ready: by worker, the sequences whose next request may begin, the oldest first.
        refused: requests that will never run, with their errors. The reader of one removes it.
        slots: of all workers, taken and free.
        fates: how many sequences have ended, by the way; see SequencesState.
        arrivals: the requests on their way to this Op.
    """

    def __init__(self, op_name: str, slots: int, max_idle_s: float, keeps: bool = False) -> None:
        self.queued: int = 0
        self.ready: dict[int, list[Ready]] = {}
        self.refused: deque[tuple[Item, PipelineError]] = deque()
        self.fates: Counter[str] = Counter()
        self.arrivals: Arrivals = Arrivals()
        self.slots: Slots = Slots(slots)
        self._op_name = op_name
        self._max_idle_s = max_idle_s
        self._keeps = keeps
        self._held: dict[SequenceSlot, LiveSequence] = {}
        self._chains = Chains()
        self._running: dict[Item, LiveSequence] = {}
        # Sorted by time; in a dict the search for the first would pass removed entries.
        self._idle: OrderedDict[LiveSequence, float] = OrderedDict()
        self._backlog = Backlog()

    # Requests ---------------------------------------------------------------------------------

    def add(self, item: Item, now: float) -> PipelineError | None:
        """Take a request; or return why it cannot join a sequence."""
        if self._idle:
            self.reap(now)
        info = item.info
        latest = self._chains.last(info.sequence_id)
        is_new = latest is None or latest.has_end or latest.is_over
        refusal = refusal_of(self._op_name, item, is_new)
        if refusal is not None:
            return refusal
        if latest is None or is_new:
            latest = LiveSequence(info.sequence_id, item.data_id)
            self._backlog.add()
            if self._chains.append(latest):
                self._backlog.queue(latest)
                self._assign_slots()
        elif info.sequence_start:
            _LOGGER.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end "
                "before this sequence start. Previous sequence will be terminated early.",
                latest.id,
                self._op_name,
            )
            self.fates["cut"] += 1
        latest.has_end = info.sequence_end
        latest.queue.append(item)
        self._chains.add_request(item.request, latest)
        self.queued += 1
        if latest.slot is None and (timeout_s := timeout_of(item)):
            self._backlog.limit(latest, now + timeout_s)
        if len(latest.queue) == 1:  # otherwise nothing has changed
            self._settle(latest, now)
        return None

    def take(self, worker: int, count: int) -> list[LiveSequence]:
        """Begin the next requests of the first sequences that are ready at a worker."""
        entries = self.ready[worker]
        taken = [sequence for _, _, sequence in entries[:count]]
        del entries[:count]
        for sequence in taken:
            item = sequence.running = sequence.queue.popleft()
            self._running[item] = sequence
        self.queued -= len(taken)
        return taken

    def done(self, items: Iterable[Item], now: float) -> None:
        """Note that requests have run, or never will."""
        for item in items:
            sequence = self._running.pop(item, None)
            if sequence is None:
                continue
            sequence.running = None
            if self._keeps:
                sequence.tries, sequence.is_suspect = 0, False
            self._chains.remove_requests((item.request,), sequence)
            if sequence.is_over or (sequence.has_end and not sequence.queue):
                self._end(sequence)
            else:
                self._settle(sequence, now)

    def unsent(self, item: Item, given: Any) -> None:
        """Note that a finished request did not get to its worker, nor did the states sent with it.

        Args:
            given: the states of its sequence that were to be sent with it; None: none.
        """
        sequence = self._running.get(item)
        if sequence is None:
            return
        if item.info.sequence_start:  # the worker still has the states from before
            sequence.kept, sequence.is_moved = {}, True
        elif given is not None:
            sequence.is_moved = True

    def keep(self, items: Sequence[Item], kept: Mapping[int, Any]) -> None:
        """Take the states after a batch's steps, by the place of the item; see `LiveSequence`."""
        for place, states in kept.items():
            sequence = self._running.get(items[place])
            if sequence is not None:
                sequence.kept = states

    def again(self, items: Sequence[Item], error: PipelineError, attempts: int) -> Sequence[Item]:
        """Let the requests of a lost batch run again; return the failed ones, for `error`.

        Args:
            attempts: for a request with which a worker hung.
        """
        if not self._keeps:
            return items
        failed = []
        most = attempts if isinstance(error, DeadlineError) else max(attempts, _LEAST_TRIES)
        for item in items:
            sequence = self._running.get(item)
            if sequence is None:
                failed.append(item)
                continue
            sequence.tries += len(items) == 1
            if sequence.is_over or sequence.kept is None or sequence.tries >= most:
                if item.info.sequence_start and sequence.kept is not None:
                    sequence.kept = {}  # the states from before must not be used after it
                failed.append(item)
                continue
            del self._running[item]
            sequence.running = None
            sequence.is_suspect = len(items) > 1 or sequence.is_suspect
            sequence.queue.appendleft(item)
            self.queued += 1
            self._settle(sequence, item.ready_at)
        return failed

    def drop(self, request: RequestState) -> list[Item]:
        """Forget a request that is over, which ends its sequence; return its queued items."""
        sequence = self._chains.of(request)
        if sequence is None:
            return []
        own = [item for item in sequence.queue if item.request is request]
        error = dropped(self._op_name, sequence.id, sequence.slot is not None, request)
        self._stop(sequence, error, own)
        return own

    def miss(self, request: RequestState) -> None:
        """Note that a request will never come here, although later ones of its sequence do.

        Requests before it run; requests after it have to start the sequence again.
        """
        sequence = self._chains.last(request.info.sequence_id)
        if sequence is None or sequence.has_end or sequence.is_over:
            return
        sequence.fate = "cut"
        if not (request.info.sequence_start or request.info.sequence_end):
            self.arrivals.ended(
                sequence.id, dropped(self._op_name, sequence.id, sequence.slot is not None, request)
            )
        self.end(sequence.id)

    def end(self, id: SequenceId) -> None:
        """End a sequence after its queued requests, if it has no end yet."""
        sequence = self._chains.last(id)
        if sequence is None or sequence.has_end or sequence.is_over:
            return
        if sequence.queue or sequence.running is not None:
            sequence.has_end = True
        else:
            self._end(sequence)

    def clear(self) -> list[Item]:
        """Forget all sequences; return all queued items."""
        sequences = self._chains.all()
        items = [item for sequence in sequences for item in sequence.queue]
        for sequence in sequences:
            sequence.queue.clear()
            sequence.is_over = True
        self.queued = 0
        self.fates["lost"] += len(sequences)
        for known in (self._held, self._idle, self._running):
            known.clear()
        self._chains.clear()
        self._backlog.clear()
        for ready in self.ready.values():
            ready.clear()
        self.slots.clear()
        return sorted(items, key=lambda item: item.data_id)

    # Workers ----------------------------------------------------------------------------------

    def workers_are(self, lives: Mapping[int, int]) -> None:
        """Note the current workers; sequences of lost workers are lost or move.

        `lives` has the incarnation of each worker, by its number: a replacement has another one.
        """
        if lives == self.slots.lives:
            return
        gone = self.slots.workers_are(lives)
        for slot, sequence in list(self._held.items()):
            if slot.worker in gone:
                self._worker_is_lost(sequence)
        self._assign_slots()

    def leave(self, numbers: Collection[int]) -> None:
        """Let these workers, and no others, begin no more sequences: they are about to leave."""
        self.slots.leave(numbers, self._held)
        self._assign_slots()

    def _worker_is_lost(self, sequence: LiveSequence) -> None:
        """End a sequence whose worker was lost, or let it wait for another slot.

        If its states are known, `again` decides later about a request that runs.
        """
        if self._keeps and sequence.kept is not None and sequence.slot is not None:
            if sequence.running is None:
                self._is_not_ready(sequence)
            del self._held[sequence.slot]
            sequence.slot, sequence.is_moved = None, True
            self._backlog.add()
            self._backlog.queue(sequence)
            return
        if sequence.running is not None:
            del self._running[sequence.running]
            self._chains.remove_requests((sequence.running.request,), sequence)
            sequence.running = None
        self._stop(sequence, lost(self._op_name, sequence.id))

    # Time -------------------------------------------------------------------------------------

    @property
    def reaps_at(self) -> float | None:
        """Return when the next sequence has been idle, or in the backlog, for too long."""
        since = next(iter(self._idle.values()), None)
        idle = None if since is None else since + self._max_idle_s
        limited = self._backlog.limited_until
        if idle is None or limited is None:
            return limited if idle is None else idle
        return min(idle, limited)

    def reap(self, now: float) -> None:
        """Free the slots of idle sequences, and refuse sequences that waited too long."""
        while self._idle:
            sequence, since = next(iter(self._idle.items()))
            if now < since + self._max_idle_s:
                break
            if self.arrivals.is_awaited(sequence.id):
                self._settle(sequence, now)
                continue
            sequence.fate = "reaped"
            self._end(sequence)
        while (late := self._backlog.expired(now)) is not None:
            self._stop(late, OverloadedError(EXPIRED))

    @property
    def parked(self) -> int:
        """Return how many requests wait for a slot, or for another of their sequence."""
        return self.queued - sum(map(len, self.ready.values()))

    def state(self) -> SequencesState:
        """Return the current state."""
        return SequencesState(
            live=len(self._held) + self._backlog.size,
            backlog=self._backlog.size,
            slots=len(self._held) + self.slots.free,
            used=len(self._held),
            **self.fates,
        )

    @property
    def in_backlog(self) -> int:
        """Return how many requests belong to sequences without a slot."""
        return sum(len(chain.queue) for chain in self._chains.all() if chain.slot is None)

    # Within -----------------------------------------------------------------------------------

    def _assign_slots(self) -> None:
        """Give the free slots to waiting sequences, the oldest first."""
        while self.slots.free and self._backlog.first() is not None:
            sequence = self._backlog.take()
            sequence.slot = self.slots.take()
            self._held[sequence.slot] = sequence
            if sequence.queue and sequence.running is None:  # otherwise a request is about to come
                self._is_ready(sequence)

    def _settle(self, sequence: LiveSequence, now: float) -> None:
        """Note whether a sequence is ready, idle, or has to wait."""
        self._idle.pop(sequence, None)
        if sequence.running is not None:
            return
        if not sequence.queue and (sequence.slot is not None or self._keeps):
            self._idle[sequence] = now
        elif sequence.slot is not None:
            self._is_ready(sequence)

    def _is_ready(self, sequence: LiveSequence) -> None:
        assert sequence.slot is not None, "the caller checks it"
        first = sequence.queue[0]
        entry = first.ready_at, first.data_id, sequence
        insort(self.ready.setdefault(sequence.slot.worker, []), entry)

    def _is_not_ready(self, sequence: LiveSequence) -> None:
        """Remove a sequence from `ready`, if it is there."""
        if sequence.slot is None or not sequence.queue:
            return
        entries, first = self.ready.get(sequence.slot.worker, []), sequence.queue[0]
        place = bisect_left(entries, (first.ready_at, first.data_id, sequence))
        if place < len(entries) and entries[place][2] is sequence:
            del entries[place]

    def _stop(self, sequence: LiveSequence, error: PipelineError, own: Iterable[Item] = ()) -> None:
        """End a sequence before its end; queued requests are refused, except for `own`."""
        self._is_not_ready(sequence)
        sequence.is_over = True
        self.arrivals.ended(sequence.id, error)
        sequence.fate = "lost" if isinstance(error, WorkerDiedError) else "cut"
        self.queued -= len(sequence.queue)
        self.refused += [(item, error) for item in sequence.queue if item not in own]
        self._chains.remove_requests([item.request for item in sequence.queue], sequence)
        sequence.queue.clear()
        self._idle.pop(sequence, None)
        if sequence.running is None:
            self._end(sequence)

    def _end(self, sequence: LiveSequence) -> None:
        """Free the slot, and let the next sequence of the same id begin."""
        sequence.is_over = True
        self._idle.pop(sequence, None)
        self.fates[sequence.fate] += 1
        slot, following = sequence.slot, self._chains.remove(sequence)
        if slot is None:
            self._backlog.count_ended()
        else:
            del self._held[slot]
            self.slots.give_back(slot)
        if following is not None:
            self._backlog.queue(following)
        self._assign_slots()


# Errors of requests, with Triton's text where Triton has one ------------------------------------


def refusal_of(op_name: str, item: Item, is_new: bool) -> PipelineError | None:
    """Return why a request cannot join a sequence; `is_new`: no sequence has its id."""
    wrong = _wrong(item, is_new)
    if wrong is None:
        return None
    target, info = item.request.target, item.info
    is_v2 = (target is not None and target.op is not None) or "sequence_id" in info.parameters
    words = _OF_TRITON if is_v2 else _OURS
    return InputError(words[wrong].format(op=op_name, id=info.sequence_id))


def _wrong(item: Item, is_new: bool) -> str | None:
    info = item.info
    if not info.sequence_id:
        return "id"
    if item.request.rows > 1:
        return "rows"
    return "start" if is_new and not info.sequence_start else None


def dropped(op_name: str, id: int | str, has_slot: bool, request: RequestState) -> PipelineError:
    """Return the error of a sequence's other requests after one has left."""
    if not has_slot and isinstance(request.error, DeadlineError):
        return OverloadedError(EXPIRED)
    how = ending_text(request.error)
    return RequestCancelledError(
        f"[{op_name}] a request of sequence {id} {how}, which ended the sequence"
    )


def lost(op_name: str, id: int | str) -> PipelineError:
    """Return the error of a sequence's requests after its worker was lost."""
    return WorkerDiedError(
        f"[{op_name}] sequence {id} has ended: its worker was lost, with the sequence's state. "
        "Begin it again with sequence_start"
    )


def ending_text(error: PipelineError | None) -> str:
    """Return a text for the end of a request that did not run, by the client's error."""
    if isinstance(error, DeadlineError):
        return "ran out of time"
    return "was cancelled" if isinstance(error, ClosedError) else "was lost on its way"
