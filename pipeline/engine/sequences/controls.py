"""Controls: arrays that describe, to `process`, the sequences of its requests.

The formats are Triton's: a control is [1] for each request, and so [rows, 1] for a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.config.sequences import Control, Kind
from pipeline.data import SequenceStep
from pipeline.errors import InputError
from pipeline.proto.v2.raw import DATATYPES

_ID_BITS = 2**64 - 1


class Controls:
    """The controls of one Op.

    Args:
        op_name: for texts.
        controls: checked controls.
        flat: names of the controls that a model takes as [rows].
    """

    def __init__(
        self, op_name: str, controls: Sequence[Control], flat: Collection[str] = ()
    ) -> None:
        self._op_name = op_name
        self._controls = controls
        self._flat = flat

    def refusal(self, id: int | str) -> InputError | None:
        """Return why a sequence cannot have this id; None: it can."""
        for control in self._controls:
            is_text = control.datatype == "STRING"
            if control.kind is Kind.CORRID and isinstance(id, str) is not is_text:
                sent = "UINT64" if is_text else "BYTES"
                expected = "BYTES" if is_text else control.datatype
                return InputError(
                    f"sequence batching control '{control.name}' data-type is '{sent}', but "
                    f"model '{self._op_name}' expects '{expected}'"
                )
        return None

    def arrays(self, steps: Sequence[SequenceStep | None]) -> dict[str, np.ndarray]:
        """Return the controls of these rows; None: a filler."""
        arrays = {control.name: _array(control, steps) for control in self._controls}
        for name in self._flat:
            arrays[name] = arrays[name].reshape(-1)
        return arrays


def _array(control: Control, steps: Sequence[SequenceStep | None]) -> np.ndarray:
    match control.kind:
        case Kind.START:
            flags = [step is not None and step.start for step in steps]
        case Kind.END:
            flags = [step is not None and step.end for step in steps]
        case Kind.READY:
            flags = [step is not None for step in steps]
        case Kind.CORRID:
            return _ids(control.datatype, steps)
    values = [control.values[flag] for flag in flags]
    return np.array(values, DATATYPES[control.datatype]).reshape(-1, 1)


def _ids(datatype: str, steps: Sequence[SequenceStep | None]) -> np.ndarray:
    if datatype == "STRING":
        texts = ["" if step is None else str(step.id) for step in steps]
        return np.array(texts, object).reshape(-1, 1)
    numbers = [0 if step is None else int(step.id) & _ID_BITS for step in steps]
    ids = np.array(numbers, np.uint64)
    return ids.astype(DATATYPES[datatype]).reshape(-1, 1)  # a shorter type gets the low bits


def is_one_row(feed: Any) -> bool:
    """Return whether a request's feed has one row, so that fillers can be put around it."""
    return isinstance(feed, Mapping) and all(
        len(value) == 1
        for value in feed.values()
        if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim)
    )


def in_slots(steps: Sequence[SequenceStep]) -> list[SequenceStep | None]:
    """Return a row for each slot up to the highest that has a step; None: a filler."""
    rows: list[SequenceStep | None] = [None] * (max(step.slot for step in steps) + 1)
    for step in steps:
        rows[step.slot] = step
    return rows


def spread(feed: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Return a feed with each row at its place; the rows between are fillers: zeros, or empty.

    Args:
        feed: of `process`; arrays and lists have a row for each place, other values are unchanged.
        places: of the rows.
    """
    rows = max(places) + 1
    if list(places) == list(range(rows)):
        return dict(feed)
    return {name: _spread(value, places, rows) for name, value in feed.items()}


def _spread(value: Any, places: Sequence[int], rows: int) -> Any:
    if isinstance(value, list) and len(value) == len(places):
        listed = [_empty(value[0])] * rows
        for place, row in zip(places, value, strict=True):
            listed[place] = row
        return listed
    if not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) != len(places):
        return value
    array = filler_like(value, (rows, *value.shape[1:]))
    array[list(places)] = value
    return array


def filler_like(like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array for a filler row: zeros, or empty elements of the type of the others."""
    if like.dtype == object:
        return np.full(shape, _empty(like.flat[0] if like.size else ""), object)
    return np.zeros(shape, like.dtype)


def _empty(element: Any) -> Any:
    """Return an empty element of the type of `element`: "" for text, 0 for 5; None for others."""
    is_simple = isinstance(element, str | bytes | int | float | list)
    return type(element)() if is_simple else None


def gathered(result: Any, places: Sequence[int]) -> Any:
    """Return the result of `process` for a feed that was `spread`, without the fillers."""
    rows = max(places) + 1
    has_no_fillers = list(places) == list(range(rows))
    return result if has_no_fillers else _gathered(result, places, rows)


def _gathered(value: Any, places: Sequence[int], rows: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _gathered(part, places, rows) for name, part in value.items()}
    if isinstance(value, list | tuple) and len(value) == rows:
        return [value[place] for place in places]
    if isinstance(value, np.ndarray) and value.ndim and len(value) == rows:
        return value[list(places)]
    return value
