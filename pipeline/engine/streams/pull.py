"""Pull: one generator of a user's Op, and the requests whose parts it makes.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import slices, split_result
from pipeline.errors import PayloadTypeError

DONE = "done"
"""The key by which a batch's `process` says, for each row, that this part is its last."""


NO_PART: Any = type("NoPart", (), {"__repr__": lambda self: "NO_PART"})()
"""In the place of a part: the stream ended before."""


class Piece(NamedTuple):
    """One turn's yield for one request; `has_part` False: its stream ended before."""

    item: int
    data: Any
    is_last: bool = False
    has_part: bool = True


class Pull:
    """A generator that runs, turn by turn.

    Args:
        generator: of `process` or `postprocess`.
        call: of the batch: its items, and how many rows each of them brought.
        wait_for: has what an asynchronous one yields.
        is_batched: whether None in the place of a row, or `done`, ends a request.
        skips_process: it is no generator of the user's, but has what `preprocess` returned.

    Attributes:
        items: indexes, in the batch, of the requests that have rows.
        turns: how often it has yielded.
        is_over: whether it has ended, or was closed.
        advance: returns what the generator yields next; raises StopIteration at its end.
        trace, deadline: of the call, the same at each turn.
    """

    def __init__(
        self,
        generator: Any,
        call: Call,
        wait_for: Callable[[Awaitable[Any], str], Any],
        is_batched: bool = False,
        skips_process: bool = False,
    ) -> None:
        self.call: Call = call
        self.is_batched: bool = is_batched
        self.skips_process: bool = skips_process
        self.items: list[int] = list(call.items)
        self.turns: int = 0
        self.is_over: bool = False
        self.trace: str = ""
        self.deadline: float | None = None
        self._generator = generator
        self._wait_for = wait_for
        self._spans = call.spans
        is_async = isinstance(generator, AsyncGenerator)
        self.advance: Callable[[], Any] = self._awaited if is_async else iter(generator).__next__

    def _awaited(self) -> Any:
        """Return what an asynchronous generator yields next; raises StopIteration at its end."""
        is_there, value = self._wait_for(_next_of(self._generator), "a part")
        if not is_there:
            raise StopIteration
        return value

    def pieces(self, result: Any) -> list[Piece]:
        """Return what there is for each request; those that end have no rows from now on.

        Raises:
            PayloadTypeError: there is not a row for each row that goes on.
        """
        parts, ends = cut(result, len(self.items), self._spans)
        pieces = [
            Piece(item, part, end, part is not NO_PART)
            for item, part, end in zip(self.items, parts, ends, strict=True)
        ]
        self._keep([place for place, piece in enumerate(pieces) if _goes_on(piece)])
        return pieces

    def close(self) -> None:
        """End the generator, wherever it stands; raises what it raises."""
        self.is_over = True
        if isinstance(self._generator, AsyncGenerator):
            self._wait_for(self._generator.aclose(), "aclose")
        elif hasattr(self._generator, "close"):
            self._generator.close()

    def _keep(self, places: Sequence[int]) -> None:
        if len(places) < len(self.items):
            self.items = [self.items[place] for place in places]
            self._spans = [[column[place] for place in places] for column in self._spans]


def cut(result: Any, count: int, spans: list[list[int]]) -> tuple[list[Any], list[bool]]:
    """Return what a batch's result has for each of its requests, and whether that is the last.

    NO_PART is in the place of what a request gets whose stream had its last part before: its rows
    are None. A row of the key DONE that is true says that this is the last one. Without `spans`
    there is one request, and all of the result is its.

    Raises:
        PayloadTypeError: there is not a row for each row that goes on.
    """
    done: Any = None
    if isinstance(result, Mapping) and _is_mask(result.get(DONE)):
        result = dict(result)
        done = result.pop(DONE)
    parts = split_result(result, spans) if spans else [result]
    ends = _ends(done, count, spans)
    values = result.values() if isinstance(result, Mapping) else [result]
    if any(isinstance(value, list | Mapping) for value in values):  # else there is no None in it
        parts = [NO_PART if _is_none(part) else part for part in parts]
    return parts, ends


def _ends(done: Any, count: int, spans: list[list[int]]) -> list[bool]:
    """Return which requests have their last part."""
    if done is None:
        return [False] * count
    if isinstance(done, bool | np.bool_) or not spans:
        return [bool(np.all(done))] * count
    if len(done) != sum(spans[0]):
        raise PayloadTypeError(
            f"process yielded {DONE!r} with {len(done)} rows for {sum(spans[0])} rows "
            "that go on: give one for each."
        )
    if spans[0].count(1) == count:  # a row each, as nearly always
        return list(map(bool, done.tolist() if getattr(done, "ndim", 0) == 1 else done))
    return [bool(np.all(rows)) for rows in slices(done, spans[0])]


async def _next_of(generator: AsyncGenerator[Any, Any]) -> tuple[bool, Any]:
    """Return (True, what comes next), or (False, None) at the end."""
    try:
        return True, await anext(generator)
    except StopAsyncIteration:
        return False, None


def _goes_on(piece: Piece) -> bool:
    return piece.has_part and not piece.is_last


def _is_mask(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.bool_)
    rows = value if isinstance(value, list | tuple) and value else [value]
    return all(isinstance(row, bool | np.bool_) for row in rows)


def _is_none(part: Any) -> bool:
    """Return whether a request has None in place of its rows."""
    values = part.values() if isinstance(part, Mapping) else [part]
    return any(
        isinstance(value, list) and value and all(row is None for row in value) for value in values
    )
