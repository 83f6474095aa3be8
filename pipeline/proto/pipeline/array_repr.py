"""numpy's `repr` of plain numeric arrays, letter for letter, at a quarter of its cost.

A string answer is this text. numpy takes 30 to 70 us for a few numbers: several times the rest of
a request's cost. numpy itself prints all arrays that are not plain. The rules are those of numpy's
arrayprint with its default options, unchanged since numpy 1.14.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pipeline.proto.slices import SLICE, Limits, breathe, sliced

Array = npt.NDArray[Any]

TENSORS_INSTEAD = "ask for tensors, or give the last Op set_pack_tensor_format(True)"
_LINE_WIDTH = 75
_PREFIX = "array("
_MAX_ROW = 8  # elements that `_plain_row` looks at
_SURELY_SHORT = len("0.12345678")
_DEFAULT_OPTIONS: dict[str, Any] = {
    "precision": 8,
    "suppress": False,
    "linewidth": _LINE_WIDTH,
    "sign": "-",
    "floatmode": "maxprec",
    "formatter": None,
    "override_repr": None,
}
_DEFAULT_OPTIONS = {k: v for k, v in _DEFAULT_OPTIONS.items() if k in np.get_printoptions()}
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
    """Return `repr(array)` with all elements; None where numpy has to make it.

    numpy makes it for other dtypes, empty arrays, NaN and infinities, unusual scalars, numbers of a
    size at which numpy's choice of the format depends on rounding, and changed print options.

    Raises TooLargeError for more text than `limits` allow.
    """
    name = _DTYPE_NAMES.get(array.dtype)
    if name is None or not array.size or not _options_are_default():
        return None
    checked = limits if array.size > SLICE else None
    if checked is not None:
        checked.check_json(array.size * len("0, "), TENSORS_INSTEAD)
    body = _plain_row(array) if array.size <= _MAX_ROW else None
    if body is None:
        if not array.ndim:
            return None
        form = _form_of(array.reshape(-1))
        if form is None:
            return None
        if checked is not None:
            checked.check_json(array.size * (form.width + len(", ")), TENSORS_INSTEAD)
        body = "".join(_layout(form, array.shape))
    text = f"{_PREFIX}{body}"
    if not name:
        return f"{text})"
    last_line = len(text) - text.rfind("\n")  # with the comma that follows
    option = f"dtype={name})"
    fits = last_line + len(option) + 1 <= _LINE_WIDTH
    return f"{text}, {option}" if fits else f"{text},\n{' ' * len(_PREFIX)}{option}"


def _plain_row(array: Array) -> str | None:
    """Return the text of a row of few usual numbers, or of one; None if they are not usual.

    The text is that of `_Points` and `_layout`, with fewer calls.
    """
    depth, flat = array.ndim, array.reshape(-1)
    if flat.dtype.kind != "f" or (depth and flat.size != array.shape[-1]):
        return None
    numbers = flat.tolist()
    if not math.isfinite(sum(numbers)):  # first, because a NaN has no order
        return None
    low, high = min(numbers), max(numbers)
    if not _suit_points(low, high):
        sizes = [abs(number) for number in numbers if number]
        if not sizes or not _suit_points(min(sizes), max(sizes)):
            return None
    words = _at_points(flat, numbers)
    if len(words) > 1:
        words = _padded(words, *_sides(words))
    fits = len(words) * (len(words[0]) + 2) <= _LINE_WIDTH - 2 * depth - len(_PREFIX)
    return f"{'[' * depth}{', '.join(words)}{']' * depth}" if fits else None


_plain_options: Any = None  # the last options that equalled the default


def _options_are_default() -> bool:
    global _plain_options
    options = np.get_printoptions()
    if options == _plain_options:
        return True
    if options.get("legacy") in _SAME_TEXT and _DEFAULT_OPTIONS.items() <= options.items():
        _plain_options = options
        return True
    return False


class _Form:
    """The form of truth values, and base class of the forms of numbers."""

    width = len("False")  # of all words

    def __init__(self, flat: Array) -> None:
        self.flat = flat

    def words(self, start: int, end: int) -> list[str]:
        """Return the texts of a slice of the elements."""
        return [" True" if element else "False" for element in self.flat[start:end].tolist()]


class _Integers(_Form):
    def __init__(self, flat: Array) -> None:
        super().__init__(flat)
        self.width = 0
        for part in sliced(flat):
            numbers = part.tolist()
            self.width = max(self.width, len(str(min(numbers))), len(str(max(numbers))))

    def words(self, start: int, end: int) -> list[str]:
        return [str(number).rjust(self.width) for number in self.flat[start:end].tolist()]


class _Points(_Form):
    """At most 8 digits behind the point; shorter ones are padded with spaces."""

    def __init__(self, flat: Array) -> None:
        super().__init__(flat)
        self._left = self._right = 0
        for part in sliced(flat):
            self._latest = _at_points(part, part.tolist())
            left, right = _sides(self._latest)
            self._left, self._right = max(self._left, left), max(self._right, right)
        self.width = self._left + self._right

    def words(self, start: int, end: int) -> list[str]:
        texts = self._latest  # those of a single slice were made for the width
        if self.flat.size > SLICE:
            part = self.flat[start:end]
            texts = _at_points(part, part.tolist())
        return _padded(texts, self._left, self._right)


def _sides(texts: list[str]) -> tuple[int, int]:
    """Return the maximum lengths before a decimal point, and from it on."""
    left, width = texts[0].find("."), max(map(len, texts))
    lefts = [text.find(".") for text in texts]
    if lefts.count(left) == len(lefts):  # for example, probabilities
        return left, width - left
    return max(lefts), max(map(int.__sub__, map(len, texts), lefts))


def _padded(texts: list[str], left: int, right: int) -> list[str]:
    """Return texts with their points below each other, as words of one width."""
    width = left + right
    if left == 1:
        return [text.ljust(width) for text in texts]
    return [(" " * (left - text.find(".")) + text).ljust(width) for text in texts]


def _at_points(part: Array, numbers: list[float]) -> list[str]:
    """Return numbers with at most eight digits after the point and no zeros at the end.

    The number is rounded, not its shortest text.
    """
    if part.itemsize > 4:  # so many digits are exact: the shorter ones only get zeros
        return [text.rstrip("0") for text in ("%.8f " * len(numbers) % (*numbers,)).split()]
    texts = _shortest(part)
    if max(map(len, texts)) > _SURELY_SHORT:
        texts = [
            text if len(text) - text.index(".") <= 9 else f"{number:.8f}".rstrip("0")
            for number, text in zip(numbers, texts, strict=True)
        ]
    return [text[:-1] if text.endswith(".0") else text for text in texts]


class _Exponents(_Form):
    """One digit before the point; after it as many as the longest number needs, at most 8."""

    def __init__(self, flat: Array) -> None:
        super().__init__(flat)
        digits = size = width = 0
        for part in sliced(flat):
            digits = max(digits, *map(_significant_digits, part.tolist(), _shortest(part)))
        self._form = f"#.{max(digits - 1, 0)}e"
        for part in sliced(flat):
            self._latest = self._split(part)
            size = max(size, *(len(exponent) - 1 for _, exponent in self._latest))
            width = max(width, *(len(mantissa) for mantissa, _ in self._latest))
        self._size = size
        self.width = width + 2 + size

    def words(self, start: int, end: int) -> list[str]:
        parts = self._latest if self.flat.size <= SLICE else self._split(self.flat[start:end])
        return [
            f"{mantissa}e{power[0]}{power[1:]:0>{self._size}}".rjust(self.width)
            for mantissa, power in parts
        ]

    def _split(self, part: Array) -> list[list[str]]:
        """Return mantissa and exponent of each number."""
        return [format(number, self._form).split("e") for number in part.tolist()]


def _form_of(flat: Array) -> _Form | None:
    """Return the form that numpy would choose; None if it is not plain."""
    if flat.dtype.kind != "f":
        return _Form(flat) if flat.dtype.kind == "b" else _Integers(flat)
    low, high = math.inf, 0.0
    for part in sliced(flat):
        sizes = [abs(number) for number in part.tolist() if number]
        if not math.isfinite(sum(sizes)):
            return None
        low, high = min(low, *sizes, math.inf), max(high, *sizes, 0.0)
    if not high:
        low = high = 1.0
    if _suit_points(low, high):
        return _Points(flat)
    if low < 0.99e-4 or high > 1.01e8 or high / low > 1001.0:
        return _Exponents(flat)
    return None


def _suit_points(low: float, high: float) -> bool:
    """Return whether numpy surely writes numbers of these sizes without exponents."""
    return low > 1.01e-4 and high < 1e6 and high / low < 999.0


def _shortest(flat: Array) -> list[str]:
    """Return the fewest digits that tell each number from its neighbours of the same dtype."""
    if flat.dtype == np.float32:  # Python's repr lacks float32; orjson has it
        packed = np.ascontiguousarray(flat)  # orjson takes no strides
        return orjson.dumps(packed, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode().split(",")
    return list(map(repr, flat.tolist()))


def _significant_digits(number: float, text: str) -> int:
    """Return how many of its digits are printed: at most 9, without zeros at the end."""
    digits = text.partition("e")[0].replace(".", "").strip("-0")
    if len(digits) > 9:
        digits = f"{number:.8e}".partition("e")[0].replace(".", "").strip("-0")
    return len(digits)


def _layout(form: _Form, shape: tuple[int, ...]) -> Iterator[str]:
    """Yield the words in nested brackets, broken into lines as numpy does."""
    size, last, columns = form.flat.size, len(shape) - 1, shape[-1]
    indent = " " * (len(_PREFIX) + 1 + last)
    # Each line leaves room for its own bracket or comma, the closing ones and the parenthesis.
    room = _LINE_WIDTH - 2 - last - len(indent)
    per_line = max(1, (room - form.width) // (form.width + 2) + 1)
    line_break = f",\n{indent}"
    whole = form.words(0, size) if size <= SLICE else None
    yield "[" * len(shape)
    step = max(1, SLICE // per_line) * per_line
    for row in range(math.prod(shape[:-1])):
        if row:
            yield _row_break(row, shape)
        for at in range(0, columns, step):
            start, end = row * columns + at, row * columns + min(at + step, columns)
            words = form.words(start, end) if whole is None else whole[start:end]
            lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
            yield (line_break if at else "") + line_break.join(lines)
            if whole is None:
                breathe()
    yield "]" * len(shape)


def _row_break(row: int, shape: tuple[int, ...]) -> str:
    """Return what stands between a row and the one before it."""
    last, closed = len(shape) - 1, 1
    for size in reversed(shape[1:-1]):
        if row % size:
            break
        row //= size
        closed += 1
    space = "\n" * closed + " " * (len(_PREFIX) + 1 + last - closed)
    return "]" * closed + "," + space + "[" * closed
