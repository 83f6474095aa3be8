"""Recent: the slowest requests of the last minute and the last failed ones; Recording: raw rows."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.observe.snapshot import RecentRequest, RecentTurn
from pipeline.observe.span import REQUEST, TURN, Outcome, Rows

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
_LEAST_KEPT = 8 * 1024  # turns, before those of ended requests are looked for
_MOST_KEPT = 64 * 1024  # turns of requests that have not ended
_TOO_OLD_NS = 600 * 10**9

_Integers = npt.NDArray[np.int64]


class Recent:
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
        self._turns = _OpenTurns()
        self._slots: dict[int, list[RecentRequest]] = {}
        self._failures: deque[RecentRequest] = deque(maxlen=MOST_FAILED)
        self._errors: dict[int, tuple[int, str]] = {}

    def failed(self, data_id: int, log_id: int, error: object) -> None:
        """The text of a request's error, which its row does not have; before or after its end."""
        self._errors[data_id] = (log_id, str(error)[:_ERROR_CHARS])
        if len(self._errors) > _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]

    def fold(self, turns: Rows, requests: Rows) -> None:
        """Take in what happened since the last call."""
        self._turns.add(turns)
        if not len(requests):
            return
        slot = int(requests["end_ns"].max()) // _SLOT_NS
        kept = self._slots.setdefault(slot, [])
        slow = requests[_slow(requests, kept)]
        has_failed = np.flatnonzero(requests["outcome"] != Outcome.OK)
        failed = requests[has_failed[-MOST_FAILED:]]
        if len(slow) or len(failed):
            looked_up = self._turns.of(np.concatenate([slow["data_id"], failed["data_id"]]))
            kept += self._requests(slow, looked_up)
            kept.sort(key=_took, reverse=True)
            del kept[MOST_SLOW:]
            self._failures += self._requests(failed, looked_up)
        self._turns.end(requests)
        self._forget()

    def slowest(self) -> list[RecentRequest]:
        """The slowest requests of the last minute that were answered well, slowest first."""
        self._forget()
        kept = (request for slot in self._slots.values() for request in slot)
        return sorted(kept, key=_took, reverse=True)[:MOST_SLOW]

    def failures(self) -> list[RecentRequest]:
        """The last requests that failed, the last one first."""
        return [self._with_text(request) for request in reversed(self._failures)]

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

    def _requests(self, rows: Rows, turns: _Found) -> Iterator[RecentRequest]:
        to_wall_ns = self._wall_ns() - self._clock_ns()
        for row in rows.tolist():
            request = dict(zip(REQUEST.names or (), row, strict=True))
            data_id, start_ns = request["data_id"], request["start_ns"]
            log_id, error = self._errors.get(data_id, (0, ""))
            yield RecentRequest(
                data_id=data_id,
                log_id=log_id,
                ended_ms=(request["end_ns"] + to_wall_ns) // 10**6,
                took_ns=request["end_ns"] - start_ns,
                outcome=request["outcome"],
                code=request["code"],
                error=error,
                turns=[
                    *_unpacking(request),
                    *self._turns_of(data_id, start_ns, turns),
                    *_packing(request),
                ],
            )

    def _turns_of(self, data_id: int, start_ns: int, found: _Found) -> Iterator[RecentTurn]:
        mine = np.flatnonzero(found.turns["data_id"] == data_id)
        order = np.argsort(found.turns["ready_ns"][mine], kind="stable")
        for index in mine[order][:_MOST_TURNS]:
            turn = found.turns[index]
            yield RecentTurn(
                op=self._names[turn["op"]],
                outcome=int(turn["outcome"]),
                rows=int(turn["rows"]),
                batch_requests=int(found.sizes[index]),
                ready_ns=int(turn["ready_ns"]) - start_ns,
                start_ns=int(turn["start_ns"]) - start_ns,
                prepared_ns=int(turn["prepared_ns"]) - start_ns,
                processed_ns=int(turn["processed_ns"]) - start_ns,
                end_ns=int(turn["end_ns"]) - start_ns,
            )


def _took(request: RecentRequest) -> int:
    return request.took_ns


def _slow(requests: Rows, kept: list[RecentRequest]) -> _Integers:
    """Indices of those that belong among the slowest, given who is there already."""
    took_ns = requests["end_ns"] - requests["start_ns"]
    floor_ns = kept[-1].took_ns if len(kept) >= MOST_SLOW else -1
    slow = np.flatnonzero((requests["outcome"] == Outcome.OK) & (took_ns > floor_ns))
    if len(slow) > MOST_SLOW:
        slow = slow[np.argpartition(took_ns[slow], -MOST_SLOW)[-MOST_SLOW:]]
    return slow


def _unpacking(request: dict[str, int]) -> Iterator[RecentTurn]:
    start_ns = request["start_ns"]
    entered_ns = request["entered_ns"] or request["end_ns"]  # 0: it never was let in
    begun_ns = request["begun_ns"] or request["end_ns"]
    is_well = request["begun_ns"] > 0
    outcome = Outcome.OK if is_well else request["outcome"]
    yield _edge_turn(UNPACK, outcome, request, (0, entered_ns - start_ns, begun_ns - start_ns))


def _packing(request: dict[str, int]) -> Iterator[RecentTurn]:
    start_ns, packing_ns = request["start_ns"], request["packing_ns"]
    if request["begun_ns"] > 0 and packing_ns < request["end_ns"]:
        begun, ended = packing_ns - start_ns, request["end_ns"] - start_ns
        yield _edge_turn(PACK, Outcome.OK, request, (begun, begun, ended))


def _edge_turn(
    op: str, outcome: int, request: dict[str, int], times_ns: tuple[int, int, int]
) -> RecentTurn:
    ready_ns, start_ns, end_ns = times_ns
    return RecentTurn(
        op=op,
        outcome=int(outcome),
        rows=request["rows"],
        batch_requests=1,
        ready_ns=ready_ns,
        start_ns=start_ns,
        prepared_ns=start_ns,
        processed_ns=end_ns,
        end_ns=end_ns,
    )


# Turns of requests that have not ended ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """Turns, and for each the number of requests in its batch: 0 if it never ran."""

    turns: Rows
    sizes: _Integers


class _OpenTurns:
    """Turns until their requests end. Those of ended ones are thrown out now and then, many at
    a time: per row that costs nothing to speak of, however many requests are open."""

    def __init__(self) -> None:
        self._kept = [_Found(np.empty(0, TURN), np.empty(0, np.int64))]
        self._ended: list[_Integers] = []
        self._count = 0
        self._most = _LEAST_KEPT

    def add(self, turns: Rows) -> None:
        if len(turns):
            self._kept.append(_Found(turns, batch_sizes(turns)))
            self._count += len(turns)

    def of(self, data_ids: _Integers) -> _Found:
        """All turns of a few requests."""
        return _joined(
            [_only(found, np.isin(found.turns["data_id"], data_ids)) for found in self._kept]
        )

    def end(self, requests: Rows) -> None:
        """These requests have ended and need their turns no more."""
        self._ended.append(requests["data_id"])
        if self._count > self._most:
            self._throw_out()

    def _throw_out(self) -> None:
        found = _joined(self._kept)
        since_ns = found.turns["taken_ns"].max() - _TOO_OLD_NS
        is_open = np.isin(found.turns["data_id"], np.concatenate(self._ended), invert=True)
        is_open &= found.turns["taken_ns"] > since_ns  # turns may outlive their request
        found = _only(found, np.flatnonzero(is_open)[-_MOST_KEPT:])
        self._kept, self._ended = [found], []
        self._count = len(found.turns)
        self._most = max(_LEAST_KEPT, 2 * self._count)


def _only(found: _Found, which: npt.NDArray[Any]) -> _Found:
    return _Found(found.turns[which], found.sizes[which])


def _joined(found: list[_Found]) -> _Found:
    turns = np.concatenate([each.turns for each in found])
    return _Found(turns, np.concatenate([each.sizes for each in found]))


def batch_sizes(turns: Rows) -> _Integers:
    """For each turn, the requests in its batch, whose rows are neighbours; 0 if it never ran."""
    op, batch = turns["op"], turns["batch"]
    begins = np.flatnonzero((np.diff(op) != 0) | (np.diff(batch) != 0)) + 1
    edges = np.concatenate([[0], begins, [len(turns)]])
    counts = np.diff(edges)
    sizes: _Integers = np.where(batch < 0, 0, np.repeat(counts, counts))
    return sizes


# Recording ------------------------------------------------------------------------------------

MOST_RECORDED = 20_000
"""Turns, and requests, in a recording: what a browser can still show."""


class Recorded(msgspec.Struct, array_like=True):
    """What one copy recorded. `is_cut`: there was more than MOST_RECORDED."""

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
    """

    def __init__(self, copy: int = 0) -> None:
        self._copy = copy
        self._tapes: list[_Tape] = []

    def fold(self, turns: Rows, requests: Rows) -> None:
        """Take in what happened since the last call."""
        for tape in self._tapes:
            tape.turns.add(turns)
            tape.requests.add(requests)

    async def record(self, seconds: float, fold: Callable[[], None]) -> bytes:
        """Everything that ends in the next `seconds`, for `read_recording`.

        Args:
            seconds: how long.
            fold: `Journal.fold`, so that the recording begins and ends on time.
        """
        fold()
        tape = _Tape(_Reel(), _Reel())
        self._tapes.append(tape)
        try:
            await asyncio.sleep(seconds)
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


class _Reel:
    """Rows, up to MOST_RECORDED."""

    def __init__(self) -> None:
        self.is_cut = False
        self._pieces: list[Rows] = []
        self._left = MOST_RECORDED

    def add(self, rows: Rows) -> None:
        self.is_cut |= len(rows) > self._left
        self._pieces.append(rows[: self._left])
        self._left -= len(self._pieces[-1])

    def taken(self) -> bytes:
        return b"".join(piece.tobytes() for piece in self._pieces)


@dataclass(frozen=True, slots=True)
class _Tape:
    turns: _Reel
    requests: _Reel
