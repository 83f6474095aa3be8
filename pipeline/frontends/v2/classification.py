"""The classification extension: an output as the classes with the highest values, in text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.frontends.v2.errors import invalid
from pipeline.proto.v2.codec import RequestedOutput
from pipeline.proto.v2.raw import Array, datatype_of

_PARAMETER = "classification"
_MOST = 1_000_000  # elements of an output that is looked through, as in Triton
_NUMBERS = {
    *(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)),
    *("FP32", "FP64"),
}

Labels = Mapping[str, Sequence[bytes]]
"""Names of the classes, by output."""


def classes_wanted(outputs: Iterable[RequestedOutput]) -> dict[str, int]:
    """Return how many classes a request wants of each output that it wants so.

    Raises:
        V2Error: it is no number of classes.
    """
    wanted = {}
    for output in outputs:
        count = output.parameters.get(_PARAMETER, 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**32:
            raise invalid(
                f"parameter 'classification' of output '{output.name}' must be a number of "
                f"classes, found {count!r}",
            )
        if count:
            wanted[output.name] = count
    return wanted


def classes_of(array: Array, count: int, labels: Sequence[bytes], batches: bool) -> Array:
    """Return the highest values of an output, each as b"<value>:<index>[:<label>]".

    Args:
        count: that are wanted; there may be fewer.
        labels: by index, as far as there are any.
        batches: each row of the output has classes of its own.

    Returns:
        An array of the shape (rows, classes), or (classes,).

    Raises:
        V2Error: it is no output of numbers, or of too many.
    """
    datatype = datatype_of(array.dtype)
    if datatype not in _NUMBERS:
        raise invalid(f"class result not available for output due to unsupported type '{datatype}'")
    if array.size > _MOST:
        raise invalid("classification output tensor too large")
    rows = array.reshape(len(array), -1) if batches else array.reshape(1, -1)
    most = min(count, rows.shape[1])
    found = np.empty((len(rows), most), object)
    for at, row in enumerate(rows):
        # From the highest; of equal ones the first.
        order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1][:most]
        found[at] = [_class(row[index], index, labels) for index in order.tolist()]
    return found if batches else found[0]


def _class(value: Any, index: int, labels: Sequence[bytes]) -> bytes:
    text = f"{float(value):f}" if value.dtype.kind == "f" else str(int(value))
    label = b":" + labels[index] if index < len(labels) and labels[index] else b""
    return f"{text}:{index}".encode() + label
