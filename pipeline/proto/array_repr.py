"""numpy's `repr` of plain numeric arrays, letter for letter, at a quarter of its cost.

A string answer is this text, and numpy takes 30 to 70 us for a handful of numbers: several times
what the server spends on the rest of a request. Whatever is not plain is left to numpy itself.
The rules are those of numpy's arrayprint with its default options, unchanged since numpy 1.14.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Array = npt.NDArray[Any]

_LINE_WIDTH = 75
_PREFIX = "array("
_DEFAULT_OPTIONS: dict[str, Any] = {
    "precision": 8,
    "suppress": False,
    "linewidth": _LINE_WIDTH,
    "sign": "-",
    "floatmode": "maxprec",
    "formatter": None,
    "override_repr": None,
}
_SAME_TEXT = (False, "1.25", "2.1")  # values of "legacy" with which arrays of numbers look alike
_DTYPE_NAMES = {  # empty where the text implies the dtype
    np.dtype(np.float64): "",
    np.dtype(np.float32): "float32",
    np.dtype(np.int64): "",
    np.dtype(np.int32): "int32",
    np.dtype(np.int16): "int16",
    np.dtype(np.int8): "int8",
    np.dtype(np.uint8): "uint8",
    np.dtype(np.bool_): "",
}


def quick_repr(array: Array) -> str | None:
    """`repr(array)` with all elements; None where numpy has to say it.

    That is for other dtypes, no elements or no dimension, NaN and infinities, numbers of a size
    at which numpy's choice of the format is a matter of rounding, and changed print options.
    """
    name = _DTYPE_NAMES.get(array.dtype)
    if name is None or not array.ndim or not array.size or not _options_are_default():
        return None
    words = _words(array.ravel())
    if words is None:
        return None
    text = f"{_PREFIX}{_layout(words, array.shape)}"
    if not name:
        return f"{text})"
    last_line = len(text) - text.rfind("\n")  # with the comma to come
    option = f"dtype={name})"
    fits = last_line + len(option) + 1 <= _LINE_WIDTH
    return f"{text}, {option}" if fits else f"{text},\n{' ' * len(_PREFIX)}{option}"


def _options_are_default() -> bool:
    options = np.get_printoptions()
    return options.get("legacy") in _SAME_TEXT and all(
        options.get(name) == value for name, value in _DEFAULT_OPTIONS.items()
    )


def _words(flat: Array) -> list[str] | None:
    """The elements' texts, all of one width."""
    if flat.dtype.kind == "f":
        return _float_words(flat)
    if flat.dtype.kind == "b":
        return [" True" if element else "False" for element in flat.tolist()]
    words = list(map(str, flat.tolist()))
    width = max(map(len, words))
    return [word.rjust(width) for word in words]


def _float_words(flat: Array) -> list[str] | None:
    numbers: list[float] = flat.tolist()
    sizes = [abs(number) for number in numbers if number]
    if not math.isfinite(sum(sizes)):
        return None
    low, high = (min(sizes), max(sizes)) if sizes else (1.0, 1.0)
    if low > 1.01e-4 and high < 1e6 and high / low < 999.0:
        return _positional(numbers, _shortest(flat))
    if low < 0.99e-4 or high > 1.01e8 or high / low > 1001.0:
        return _scientific(numbers, _shortest(flat))
    return None


def _shortest(flat: Array) -> list[str]:
    """The fewest digits that tell each number from its neighbours of the same dtype."""
    if flat.dtype == np.float32:  # which Python's repr does not know, and orjson does
        return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode().split(",")
    return list(map(repr, flat.tolist()))


def _positional(numbers: list[float], shortest: list[str]) -> list[str]:
    """At most 8 digits behind the point; shorter ones are padded with spaces."""
    wholes: list[str] = []
    fractions: list[str] = []
    for number, text in zip(numbers, shortest, strict=True):
        whole, _, fraction = text.partition(".")
        if len(fraction) > 8:  # round what the number is, not what its digits say
            whole, _, fraction = f"{number:.8f}".partition(".")
        wholes.append(whole)
        fractions.append(fraction.rstrip("0"))
    left = max(map(len, wholes))
    right = max(map(len, fractions))
    return [
        f"{whole.rjust(left)}.{fraction.ljust(right)}"
        for whole, fraction in zip(wholes, fractions, strict=True)
    ]


def _scientific(numbers: list[float], shortest: list[str]) -> list[str]:
    """One digit before the point, and behind it as many as the longest needs, up to 8."""
    digits = max(map(_significant_digits, numbers, shortest))
    form = f"#.{max(digits - 1, 0)}e"
    parts = [format(number, form).partition("e") for number in numbers]
    size = max(len(exponent) for _, _, exponent in parts) - 1
    words = [f"{mantissa}e{power[0]}{power[1:]:0>{size}}" for mantissa, _, power in parts]
    width = max(map(len, words))
    return [word.rjust(width) for word in words]


def _significant_digits(number: float, text: str) -> int:
    """How many of its digits are printed: 9 at most, and no zeros at the end."""
    digits = text.partition("e")[0].replace(".", "").strip("-0")
    if len(digits) > 9:
        digits = f"{number:.8e}".partition("e")[0].replace(".", "").strip("-0")
    return len(digits)


def _layout(words: Sequence[str], shape: tuple[int, ...]) -> str:
    """The words in nested brackets, broken into lines as numpy does."""
    last = len(shape) - 1
    indent = " " * (len(_PREFIX) + 1 + last)
    # Each line leaves room for its own bracket or comma, the closing ones and the parenthesis.
    room = _LINE_WIDTH - 2 - last - len(indent)
    width = len(words[0])
    per_line = max(1, (room - width) // (width + 2) + 1)
    line_break = f",\n{indent}"
    columns = shape[-1]
    blocks = []
    for row in range(0, len(words), columns):
        lines = [
            ", ".join(words[at : min(at + per_line, row + columns)])
            for at in range(row, row + columns, per_line)
        ]
        blocks.append(f"[{line_break.join(lines)}]")
    for axis in range(last - 1, -1, -1):
        row_break = "," + "\n" * (last - axis) + " " * (len(_PREFIX) + 1 + axis)
        size = shape[axis]
        blocks = [
            f"[{row_break.join(blocks[at : at + size])}]" for at in range(0, len(blocks), size)
        ]
    return blocks[0]
