"""SlowRequestLog: the slowest requests of the last minute and the last failed ones."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from pipeline.engine.journal import BY_CALLERS, REQUEST, TURN, Outcome, Rows
from pipeline.errors import utf8_text
from pipeline.frontends.dashboard.pending import FoundSpans, PendingSpans
from pipeline.observe.snapshot import RecentRequest, RecentSpan
from pipeline.observe.tables import Positions

UNPACK, PACK = "@unpack", "@pack"
"""`op` of the two turns that every recent request has besides those of its Ops: what the
RequestOp and the ResponseOp did. Its wait to be let in is the queueing time of the first."""

MOST_SLOW = 10
"""Slowest requests that are kept."""

MOST_FAILED = 10
"""Failed requests that are kept."""

_SLOT_NS = 5 * 10**9  # the window moves on by that much
_SLOTS = 12  # of which there are that many: a minute
_MOST_TURNS = 100  # of one request: an Op may jump back any number of times
_MOST_ERRORS = 256  # whose texts are kept until the fold brings their rows
_ERROR_CHARS = 500


@dataclass(slots=True)
class _Kept:
    """A request that is worth looking at: its row, and what is shown of it, once that is known."""

    row: dict[str, int]
    log_id: int = 0
    error: str = ""
    shown: RecentRequest | None = None

    @property
    def took_ns(self) -> int:
        return self.row["end_ns"] - self.row["start_ns"]


class SlowRequestLog:
    """A Sink that keeps requests worth looking at, with all their turns.

    Args:
        names: of the Ops, in graph order.
        clock_ns: `time.monotonic_ns`, the clock of the rows.
        wall_ns: `time.time_ns`.
    """

    def __init__(
        self,
        names: Sequence[str],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._names = list(names)
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._turns = PendingSpans()
        self._slots: dict[int, list[_Kept]] = {}
        self._failures: deque[_Kept] = deque(maxlen=MOST_FAILED)
        self._callers: deque[_Kept] = deque(maxlen=MOST_FAILED)  # failures by callers
        self._errors: dict[int, tuple[int, str]] = {}

    def failed(self, data_id: int, log_id: int, error: object) -> None:
        """The text of a request's error, which its row does not have; before or after its end."""
        self._errors[data_id] = (log_id, utf8_text(str(error)[:_ERROR_CHARS]))
        if len(self._errors) > _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]

    def fold(self, turns: Rows, requests: Rows) -> None:
        """Take in what happened since the last call."""
        self._turns.add(turns)
        if not len(requests):
            return
        self._keep_slow(requests)
        self._keep_failed(requests)
        self._turns.end(requests["data_id"])
        if self._turns.are_many:  # most requests are outdone by then, and not looked up at all
            kept = itertools.chain.from_iterable(self._slots.values())
            self._look_up([*kept, *self._failures, *self._callers])
            self._turns.throw_out()
        self._forget()

    def slowest(self) -> list[RecentRequest]:
        """The slowest requests of the last minute that were answered well, slowest first."""
        self._forget()
        kept = itertools.chain.from_iterable(self._slots.values())
        return self._look_up(sorted(kept, key=_took, reverse=True)[:MOST_SLOW])

    def failures(self) -> list[RecentRequest]:
        """The last requests that failed, and the last that callers are to blame for."""
        kept = [*reversed(self._failures), *reversed(self._callers)]
        return [self._with_text(shown) for shown in self._look_up(kept)]

    def _keep_slow(self, requests: Rows) -> None:
        slot = int(requests["end_ns"].max()) // _SLOT_NS
        kept = self._slots.setdefault(slot, [])
        slow = _slow(requests, kept)
        if len(slow):
            kept += [_Kept(row) for row in _dicts(requests.take(slow))]
            kept.sort(key=_took, reverse=True)
            del kept[MOST_SLOW:]

    def _keep_failed(self, requests: Rows) -> None:
        is_failed, is_callers = requests["outcome"] > 0, np.isin(requests["outcome"], BY_CALLERS)
        for kept, which in ((self._failures, ~is_callers), (self._callers, is_callers)):
            failed = np.flatnonzero(is_failed & which)[-MOST_FAILED:]
            for row in _dicts(requests.take(failed)):
                kept.append(_Kept(row, *self._errors.get(row["data_id"], (0, ""))))

    def _forget(self) -> None:
        oldest = self._clock_ns() // _SLOT_NS - _SLOTS
        for slot in [slot for slot in self._slots if slot <= oldest]:
            del self._slots[slot]

    def _with_text(self, request: RecentRequest) -> RecentRequest:
        """`failed` may be told of a request after its row has been folded."""
        if request.error or request.data_id not in self._errors:
            return request
        log_id, text = self._errors[request.data_id]
        return msgspec.structs.replace(request, log_id=log_id, error=text)

    def _look_up(self, wanted: Sequence[_Kept]) -> list[RecentRequest]:
        """What is shown of these requests, with the turns that there were at the first look."""
        unknown = [kept.row["data_id"] for kept in wanted if kept.shown is None]
        found = self._turns.of(unknown) if unknown else None
        for kept in wanted:
            if kept.shown is None and found is not None:
                kept.shown = self._shown(kept, found)
        return [kept.shown for kept in wanted if kept.shown is not None]

    def _shown(self, kept: _Kept, found: FoundSpans) -> RecentRequest:
        row, to_wall_ns = kept.row, self._wall_ns() - self._clock_ns()
        data_id, start_ns = row["data_id"], row["start_ns"]
        turns = self._turns_of(data_id, start_ns, found)
        return RecentRequest(
            data_id=data_id,
            log_id=kept.log_id,
            ended_ms=(row["end_ns"] + to_wall_ns) // 10**6,
            took_ns=kept.took_ns,
            outcome=row["outcome"],
            code=row["code"],
            error=kept.error,
            turns=[*_unpacking(row), *turns, *_packing(row)],
        )

    def _turns_of(self, data_id: int, start_ns: int, found: FoundSpans) -> Iterator[RecentSpan]:
        mine = np.flatnonzero(found.turns["data_id"] == data_id)
        order = np.argsort(found.turns["ready_ns"][mine], kind="stable")
        for index in mine[order][:_MOST_TURNS]:
            turn = found.turns[index]
            yield RecentSpan(
                op=self._names[turn["op"]],
                outcome=int(turn["outcome"]),
                rows=int(turn["rows"]),
                batch_requests=int(found.sizes[index]),
                ready_ns=int(turn["ready_ns"]) - start_ns,
                start_ns=int(turn["start_ns"]) - start_ns,
                prepared_ns=int(turn["prepared_ns"]) - start_ns,
                processed_ns=int(turn["processed_ns"]) - start_ns,
                end_ns=int(turn["end_ns"]) - start_ns,
                taken_ns=int(turn["taken_ns"]) - start_ns,
            )


def _took(kept: _Kept) -> int:
    return kept.took_ns


def _dicts(requests: Rows) -> Iterator[dict[str, int]]:
    for row in requests.tolist():
        yield dict(zip(REQUEST.names or (), row, strict=True))


def _slow(requests: Rows, kept: list[_Kept]) -> Positions:
    """Those that belong among the slowest, given who is there already."""
    took_ns = requests["end_ns"] - requests["start_ns"]
    floor_ns = kept[-1].took_ns if len(kept) >= MOST_SLOW else -1
    slow: Positions = np.flatnonzero(took_ns > floor_ns)
    slow = slow[requests["outcome"].take(slow) == Outcome.OK]
    if len(slow) > MOST_SLOW:
        slow = slow[np.argpartition(took_ns[slow], -MOST_SLOW)[-MOST_SLOW:]]
    return slow


def _unpacking(request: dict[str, int]) -> Iterator[RecentSpan]:
    start_ns = request["start_ns"]
    entered_ns = request["entered_ns"] or request["end_ns"]  # 0: it never was let in
    begun_ns = request["begun_ns"] or request["end_ns"]
    is_well = request["begun_ns"] > 0
    outcome = Outcome.OK if is_well else request["outcome"]
    yield _edge_turn(UNPACK, outcome, request, (0, entered_ns - start_ns, begun_ns - start_ns))


def _packing(request: dict[str, int]) -> Iterator[RecentSpan]:
    start_ns, packing_ns = request["start_ns"], request["packing_ns"]
    if request["begun_ns"] > 0 and packing_ns < request["end_ns"]:
        begun, ended = packing_ns - start_ns, request["end_ns"] - start_ns
        yield _edge_turn(PACK, Outcome.OK, request, (begun, begun, ended))


def _edge_turn(
    op: str, outcome: int, request: dict[str, int], times_ns: tuple[int, int, int]
) -> RecentSpan:
    ready_ns, start_ns, end_ns = times_ns
    return RecentSpan(
        op=op,
        outcome=int(outcome),
        rows=request["rows"],
        batch_requests=1,
        ready_ns=ready_ns,
        start_ns=start_ns,
        prepared_ns=start_ns,
        processed_ns=end_ns,
        end_ns=end_ns,
        taken_ns=end_ns,
    )


# Recording ------------------------------------------------------------------------------------

MOST_RECORDED = 20_000
"""Turns, and requests, in a recording of the whole server: what a browser can still show."""


class Recorded(msgspec.Struct, array_like=True):
    """What one copy recorded. `is_cut`: there was more than its part of MOST_RECORDED."""

    copy: int
    is_cut: bool
    turn_bytes: bytes
    request_bytes: bytes

    @property
    def turns(self) -> Rows:
        """Rows of TURN."""
        return np.frombuffer(self.turn_bytes, TURN)

    @property
    def requests(self) -> Rows:
        """Rows of REQUEST."""
        return np.frombuffer(self.request_bytes, REQUEST)


def read_recording(packed: bytes) -> Recorded:
    """What `Recording.record` returned."""
    return msgspec.msgpack.decode(packed, type=Recorded)


class Recording:
    """A Sink that keeps raw rows for as long as somebody records.

    Args:
        copy: number of this copy of the server.
        copies: how many there are, which share in what a recording may hold.
    """

    def __init__(self, copy: int = 0, copies: int = 1) -> None:
        self._copy = copy
        self._most = MOST_RECORDED // copies
        self._tapes: list[_Tape] = []
        self._ending = asyncio.Event()

    def fold(self, turns: Rows, requests: Rows) -> None:
        """Take in what happened since the last call."""
        for tape in self._tapes:
            tape.turns.add(turns)
            tape.requests.add(requests)

    async def record(self, seconds: float, fold: Callable[[], None]) -> bytes:
        """Everything that ends in the next `seconds`, or before `end`, for `read_recording`.

        Args:
            seconds: how long.
            fold: `Journal.fold`, so that the recording begins and ends on time.
        """
        fold()
        tape = _Tape(_Reel(self._most), _Reel(self._most))
        self._tapes.append(tape)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), seconds)
            fold()
        finally:
            self._tapes = [other for other in self._tapes if other is not tape]
        recorded = Recorded(
            copy=self._copy,
            is_cut=tape.turns.is_cut or tape.requests.is_cut,
            turn_bytes=tape.turns.taken(),
            request_bytes=tape.requests.taken(),
        )
        return msgspec.msgpack.encode(recorded)

    def end(self) -> None:
        """The server stops: all recordings end now, with what they have."""
        self._ending.set()


class _Reel:
    """Rows, up to `most`."""

    def __init__(self, most: int) -> None:
        self.is_cut = False
        self._pieces: list[Rows] = []
        self._left = most

    def add(self, rows: Rows) -> None:
        self.is_cut |= len(rows) > self._left
        taken = rows[: self._left]
        if len(taken):  # an empty piece would hold on to all rows of the fold
            self._pieces.append(taken)
            self._left -= len(taken)

    def taken(self) -> bytes:
        return b"".join(piece.tobytes() for piece in self._pieces)


@dataclass(frozen=True, slots=True)
class _Tape:
    turns: _Reel
    requests: _Reel
