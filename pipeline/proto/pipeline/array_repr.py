"""numpy's `repr` of plain numeric arrays, letter for letter, at a quarter of its cost.

A string answer is this text, and numpy takes 30 to 70 us for a handful of numbers: several times
what the server spends on the rest of a request. Whatever is not plain is left to numpy itself.
The rules are those of numpy's arrayprint with its default options, unchanged since numpy 1.14.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pipeline.proto.slices import SLICE, Limits, breathe

Array = npt.NDArray[Any]

TENSORS_INSTEAD = "ask for tensors, or give the last Op set_pack_tensor_format(True)"
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


def quick_repr(array: Array, limits: Limits | None = None) -> str | None:
    """`repr(array)` with all elements; None where numpy has to say it.

    Raises TooLargeError for more text than `limits` lets pass.

    That is for other dtypes, no elements or no dimension, NaN and infinities, numbers of a size
    at which numpy's choice of the format is a matter of rounding, and changed print options.
    """
    name = _DTYPE_NAMES.get(array.dtype)
    if name is None or not array.ndim or not array.size or not _options_are_default():
        return None
    if array.size > SLICE:
        body = long_body(array, limits or Limits(sys.maxsize))
    else:
        words = _words(array.ravel())
        body = None if words is None else _layout(words, array.shape)
    if body is None:
        return None
    text = f"{_PREFIX}{body}"
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
    return _aligned(*_halves(numbers, shortest))


def _halves(numbers: list[float], shortest: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the point, and behind it."""
    wholes: list[str] = []
    fractions: list[str] = []
    for number, text in zip(numbers, shortest, strict=True):
        whole, _, fraction = text.partition(".")
        if len(fraction) > 8:  # round what the number is, not what its digits say
            whole, _, fraction = f"{number:.8f}".partition(".")
        wholes.append(whole)
        fractions.append(fraction.rstrip("0"))
    return wholes, fractions


def _aligned(
    wholes: list[str], fractions: list[str], left: int | None = None, right: int | None = None
) -> list[str]:
    left = max(map(len, wholes)) if left is None else left
    right = max(map(len, fractions)) if right is None else right
    return [
        f"{whole.rjust(left)}.{fraction.ljust(right)}"
        for whole, fraction in zip(wholes, fractions, strict=True)
    ]


def _scientific(numbers: list[float], shortest: list[str]) -> list[str]:
    """One digit before the point, and behind it as many as the longest needs, up to 8."""
    digits = max(map(_significant_digits, numbers, shortest))
    parts = _powers(numbers, digits)
    size = max(len(exponent) for _, exponent in parts) - 1
    words = _with_powers(parts, size)
    width = max(map(len, words))
    return [word.rjust(width) for word in words]


def _powers(numbers: list[float], digits: int) -> list[tuple[str, str]]:
    """(mantissa, exponent) of each number."""
    form = f"#.{max(digits - 1, 0)}e"
    return [format(number, form).split("e") for number in numbers]  # type: ignore[misc]  # two


def _with_powers(parts: list[tuple[str, str]], size: int) -> list[str]:
    return [f"{mantissa}e{power[0]}{power[1:]:0>{size}}" for mantissa, power in parts]


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


# --- many elements ------------------------------------------------------------------------------


class _Form:
    """How the elements of a long array are written, found out and done in slices."""

    def __init__(self, flat: Array) -> None:
        self.flat = flat
        self.width = 0

    def measure(self) -> bool:
        """Find the width of all words; False: numpy has to."""
        self.width = len("False")
        return True

    def words(self, start: int, end: int) -> list[str]:
        words = _words(self.flat[start:end])
        assert words is not None
        return words

    def _slices(self) -> Iterator[Array]:
        for at in range(0, self.flat.size, SLICE):
            breathe()
            yield self.flat[at : at + SLICE]


class _Integers(_Form):
    def measure(self) -> bool:
        self.width = max(len(str(self.flat.min())), len(str(self.flat.max())))
        return True

    def words(self, start: int, end: int) -> list[str]:
        return [str(number).rjust(self.width) for number in self.flat[start:end].tolist()]


class _Points(_Form):
    left = right = 0

    def measure(self) -> bool:
        for part in self._slices():
            wholes, fractions = _halves(part.tolist(), _shortest(part))
            self.left = max(self.left, *map(len, wholes))
            self.right = max(self.right, *map(len, fractions))
        self.width = self.left + 1 + self.right
        return True

    def words(self, start: int, end: int) -> list[str]:
        part = self.flat[start:end]
        return _aligned(*_halves(part.tolist(), _shortest(part)), self.left, self.right)


class _Exponents(_Form):
    digits = size = 0

    def measure(self) -> bool:
        for part in self._slices():
            found = map(_significant_digits, part.tolist(), _shortest(part))
            self.digits = max(self.digits, *found)
        for part in self._slices():
            parts = _powers(part.tolist(), self.digits)
            self.size = max(self.size, max(len(exponent) for _, exponent in parts) - 1)
            self.width = max(self.width, *(len(mantissa) for mantissa, _ in parts))
        self.width += 2 + self.size
        return True

    def words(self, start: int, end: int) -> list[str]:
        parts = _powers(self.flat[start:end].tolist(), self.digits)
        return [word.rjust(self.width) for word in _with_powers(parts, self.size)]


def _form_of(flat: Array) -> _Form | None:
    if flat.dtype.kind != "f":
        return _Form(flat) if flat.dtype.kind == "b" else _Integers(flat)
    low, high = math.inf, 0.0
    for at in range(0, flat.size, SLICE):
        sizes = np.abs(flat[at : at + SLICE].astype(np.float64))
        high = max(high, float(sizes.max()))
        if not math.isfinite(float(sizes.sum())):
            return None
        low = min(low, float(sizes[sizes > 0].min(initial=math.inf)))
    kind = _kind_of(*((low, high) if high else (1.0, 1.0)))
    return None if kind is None else kind(flat)


def _kind_of(low: float, high: float) -> type[_Form] | None:
    """As `_float_words` chooses."""
    if low > 1.01e-4 and high < 1e6 and high / low < 999.0:
        return _Points
    if low < 0.99e-4 or high > 1.01e8 or high / low > 1001.0:
        return _Exponents
    return None


def long_body(array: Array, limits: Limits) -> str | None:
    """The nested brackets of many elements, made slice by slice; None: numpy has to."""
    limits.check_json(array.size * len("0, "), TENSORS_INSTEAD)
    form = _form_of(array.reshape(-1))
    if form is None or not form.measure():
        return None
    limits.check_json(array.size * (form.width + len(", ")), TENSORS_INSTEAD)
    return "".join(_long_layout(form, array.shape))


def _long_layout(form: _Form, shape: tuple[int, ...]) -> Iterator[str]:
    """The pieces of what `_layout` gives."""
    last, columns = len(shape) - 1, shape[-1]
    indent = " " * (len(_PREFIX) + 1 + last)
    room = _LINE_WIDTH - 2 - last - len(indent)
    per_line = max(1, (room - form.width) // (form.width + 2) + 1)
    line_break = f",\n{indent}"
    yield "[" * len(shape)
    step = max(1, SLICE // per_line) * per_line
    for row in range(math.prod(shape[:-1])):
        if row:
            yield _row_break(row, shape)
        for at in range(0, columns, step):
            words = form.words(row * columns + at, row * columns + min(at + step, columns))
            lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
            yield (line_break if at else "") + line_break.join(lines)
            breathe()
    yield "]" * len(shape)


def _row_break(row: int, shape: tuple[int, ...]) -> str:
    """What stands between a row and the one before it."""
    last, closed = len(shape) - 1, 1
    for size in reversed(shape[1:-1]):
        if row % size:
            break
        row //= size
        closed += 1
    space = "\n" * closed + " " * (len(_PREFIX) + 1 + last - closed)
    return "]" * closed + "," + space + "[" * closed
