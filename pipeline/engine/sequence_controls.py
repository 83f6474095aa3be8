"""Controls: what `process` is told, in arrays, of the sequences whose requests it works on.

Formats are Triton's: a control is [1] of each request, and so [rows, 1] of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.config.controls import Control, Kind
from pipeline.data import SequenceStep
from pipeline.errors import InputError

_DTYPES = {
    "INT32": np.int32,
    "FP32": np.float32,
    "BOOL": np.bool_,
    "UINT64": np.uint64,
    "INT64": np.int64,
    "UINT32": np.uint32,
}
_ID_BITS = 2**64 - 1


class Controls:
    """The controls of one Op.

    Args:
        op_name: for texts.
        controls: checked.

    Attributes:
        tells_ready: whether `process` is told which rows of a batch nobody has sent.
    """

    def __init__(self, op_name: str, controls: Sequence[Control]) -> None:
        self.tells_ready: bool = any(control.kind is Kind.READY for control in controls)
        self._op_name = op_name
        self._controls = controls

    def refusal(self, id: int | str) -> InputError | None:
        """Return why a sequence cannot have this id; None: it can."""
        for control in self._controls:
            is_text = control.datatype == "STRING"
            if control.kind is Kind.CORRID and isinstance(id, str) is not is_text:
                found = "UINT64" if is_text else "BYTES"
                expected = "BYTES" if is_text else control.datatype
                return InputError(
                    f"sequence batching control '{control.name}' data-type is '{found}', but "
                    f"model '{self._op_name}' expects '{expected}'"
                )
        return None

    def arrays(self, steps: Sequence[SequenceStep]) -> dict[str, np.ndarray]:
        """Return the controls of so many requests, a row each."""
        return {control.name: _array(control, steps) for control in self._controls}


def _array(control: Control, steps: Sequence[SequenceStep]) -> np.ndarray:
    match control.kind:
        case Kind.START:
            flags = [step.start for step in steps]
        case Kind.END:
            flags = [step.end for step in steps]
        case Kind.READY:
            flags = [True] * len(steps)
        case Kind.CORRID:
            return _ids(control.datatype, steps)
    values = [control.values[flag] for flag in flags]
    return np.array(values, _DTYPES[control.datatype]).reshape(-1, 1)


def _ids(datatype: str, steps: Sequence[SequenceStep]) -> np.ndarray:
    if datatype == "STRING":
        return np.array([str(step.id).encode() for step in steps], object).reshape(-1, 1)
    ids = np.array([int(step.id) & _ID_BITS for step in steps], np.uint64)
    return ids.astype(_DTYPES[datatype]).reshape(-1, 1)  # of which a shorter type has the low bits


def spread(feed: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Return a feed with each row at its place; the rows between are zeros, or empty.

    Args:
        feed: of `process`; arrays and lists have a row for each place, other values are kept.
        places: of the rows, rising.
    """
    rows = places[-1] + 1
    if rows == len(places):
        return dict(feed)
    return {name: _spread(value, places, rows) for name, value in feed.items()}


def _spread(value: Any, places: Sequence[int], rows: int) -> Any:
    if isinstance(value, list) and len(value) == len(places):
        empty = "" if value and isinstance(value[0], str) else None
        spread = [empty] * rows
        for place, each in zip(places, value, strict=True):
            spread[place] = each
        return spread
    if not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) != len(places):
        return value
    if value.dtype == object:
        array = np.full((rows, *value.shape[1:]), b"", object)
    else:
        array = np.zeros((rows, *value.shape[1:]), value.dtype)
    array[list(places)] = value
    return array


def gathered(result: Any, places: Sequence[int]) -> Any:
    """Return what `process` made of a feed that was `spread`, without the rows between."""
    rows = places[-1] + 1
    if rows == len(places) or not isinstance(result, Mapping):
        return result
    return {name: _gathered(value, places, rows) for name, value in result.items()}


def _gathered(value: Any, places: Sequence[int], rows: int) -> Any:
    if isinstance(value, list) and len(value) == rows:
        return [value[place] for place in places]
    if isinstance(value, np.ndarray) and value.ndim and len(value) == rows:
        return value[list(places)]
    return value
