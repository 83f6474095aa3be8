"""Arrays as the text that numpy prints: the writer and the reader of one format.

String answers carry arrays as `repr(array)`, and clients in the field parse exactly that text.
They do so with `eval`. The reader here is a parser of arrays, lists, numbers and quoted text. Its
time and memory are proportional to the text, and it calls nothing by name.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.pipeline.array_repr import TENSORS_INSTEAD, quick_repr
from pipeline.proto.pipeline.shapes import block_dims
from pipeline.proto.slices import Limits, sliced

Array = npt.NDArray[Any]

_SUMMARISED_ABOVE = 1000  # elements; numpy's default threshold
_MAX_DEPTH = 64  # numpy's limit of dimensions
# A "<U" or "S" array pads every element to the longest, so a short text can stand for a lot.
_MAX_PADDED_BYTES = 2**20  # of an array of text; larger ones are of objects

_NUMBER_TYPES: tuple[type[Any], ...] = (bool, int, float, complex)

# Before numpy 2.2 the print options were global: only one thread may change them.
_print_options = threading.RLock()


# --- numpy to text --------------------------------------------------------------------------


def numpy_to_text(value: Any, limits: Limits | None = None) -> str:
    """Return the text of a value in a string answer.

    An array gives exactly numpy's `repr` with all of its elements, to numpy's print precision
    (8 digits, unless the program changed it: float64 loses the rest). A list of `str` gives the
    `repr` of a list of plain `str`; a number, Python's or numpy's, that of the plain Python
    number; a `str` is its own text. Raises PayloadTypeError for anything else, and TooLargeError
    for more text than `limits` allow.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray):
        return _array_repr(np.asarray(value), limits)
    if isinstance(value, np.generic):
        value = value.item()
    for kind in _NUMBER_TYPES:
        if isinstance(value, kind):
            return repr(kind(value))  # an IntEnum's member would print its name
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return _list_repr(value, limits or Limits(sys.maxsize, sys.maxsize))
    raise PayloadTypeError(
        f"a {type(value).__name__} has no text form; give an array, a number, str or list[str]"
    )


def _list_repr(strings: list[str], limits: Limits) -> str:
    limits.check_texts(len(strings))
    parts: list[str] = []
    size = 0
    for some in sliced(strings):
        parts.append(repr([str(element) for element in some])[1:-1])
        size += len(parts[-1])
        limits.check_json(size, TENSORS_INSTEAD)
    return f"[{', '.join(parts)}]"


def _array_repr(array: Array, limits: Limits | None) -> str:
    text = quick_repr(array, limits)
    if text is not None:
        return text
    if limits is not None:
        limits.check_json(array.size * len("0, "), TENSORS_INSTEAD)
    if array.size <= _SUMMARISED_ABOVE and np.get_printoptions()["threshold"] >= array.size:
        return repr(array)
    with _print_options, np.printoptions(threshold=sys.maxsize):
        return repr(array)


# --- text to numpy --------------------------------------------------------------------------


def text_to_numpy(text: str) -> Any:
    """Return the value that `numpy_to_text`, or `repr` of a list or number, wrote as `text`.

    `array(...)` gives an array, `[...]` a list, a number or bool itself. Raises PackageError
    when the text is anything else.
    """
    try:
        return _TextReader(text).whole()
    except (ValueError, TypeError, OverflowError, SyntaxError, MemoryError) as error:
        raise PackageError(f"not the text of an array, list or number: {error}") from None


_SPACE = re.compile(r"\s*+")
_NUMBER = re.compile(
    r"[+-]?(?:(?:0|[1-9][0-9]*+)(?![0-9.eEj])|"  # an integer, or ...
    r"(?:(?:[0-9]++(?:\.[0-9]*+|(?=[eEj]))|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|nan|inf)"
    r"(?P<imaginary>j?))(?![\w.])",
    re.ASCII,
)
# Quoted text with the escapes that repr writes; any other would make Python warn.
_ESCAPE = r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2})"""
_WIDE_ESCAPE = _ESCAPE[:-1] + r"|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_QUOTED = r"""(?:'[^'\\\n]*+(?:%s[^'\\\n]*+)*+'|"[^"\\\n]*+(?:%s[^"\\\n]*+)*+")"""
_STRING = re.compile(
    f"b{_QUOTED % (_ESCAPE, _ESCAPE)}|{_QUOTED % (_WIDE_ESCAPE, _WIDE_ESCAPE)}",
)
_NAME = re.compile(r"[A-Za-z_][\w.]*+", re.ASCII)
_NUMERIC_BODY = re.compile(r"\[(?:[\[\],\s0-9eE+\-.]++|nan|inf)*+", re.ASCII)
_NOT_SKELETON = re.compile(r"[^\[\],]++")
_DTYPE_TEXT = re.compile(r"[<>|=]?(?:[biufcSU][0-9]*|\?|O)", re.ASCII)

_CONSTANTS = {"True": True, "False": False, "None": None, "np.True_": True, "np.False_": False}
_DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64", "complex128", "bool", "object"),
        )
    },
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


class _TextReader:
    """A recursive descent parser; `_at` is its position in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self._at != len(self._text):
            self._fail("the end")
        if value is None or isinstance(value, str | bytes):
            raise ValueError("it is a constant of another kind")
        return value

    # - values -

    def _value(self, depth: int) -> Any:
        """Read the value that starts here; `depth` brackets are open."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} brackets are open")
        self._skip_space()
        if self._taken("["):
            return self._list(depth + 1)
        if self._taken("("):
            value = self._number()
            self._expect(")")
            return value
        string = _STRING.match(self._text, self._at)
        if string:
            self._at = string.end()
            return _unquoted(string[0])
        if _NUMBER.match(self._text, self._at):
            return self._number()
        return self._named(depth)

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._taken("]"):
            if items:
                self._expect(",")
            items.append(self._value(depth))
        return items

    def _number(self) -> int | float | complex:
        """Read a number; a real part directly followed by an imaginary part is one number."""
        self._skip_space()
        match = self._match(_NUMBER, "a number")
        if match["imaginary"] is None:
            # No integer prints as -0, but bfloat16 prints whole numbers without a point.
            real: int | float = -0.0 if match[0] == "-0" else int(match[0])
        elif match["imaginary"]:
            return complex(0.0, float(match[0][:-1]))
        else:
            real = float(match[0])
        self._skip_space()  # numpy pads the real parts: "1. +2.5j"
        follower = _NUMBER.match(self._text, self._at)
        if follower and follower["imaginary"] and follower[0][0] in "+-":
            self._at = follower.end()
            return complex(real, float(follower[0][:-1]))
        return real

    def _named(self, depth: int) -> Any:
        name = self._match(_NAME, "a value")[0]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name == "array":
            return self._array(depth)
        # numpy 2 prints the scalars of a list as np.float32(1.5) and np.str_('a').
        self._expect("(")
        value = self._value(depth + 1)
        self._expect(")")
        if name in ("np.str_", "np.bytes_") and isinstance(value, str | bytes):
            return value
        dtype = _DTYPES.get(name.removeprefix("np."))
        if dtype is None:
            raise ValueError(f"{name!r} is not a name that is known here")
        return np.array(value, dtype)[()]

    # - arrays -

    def _array(self, depth: int) -> Array:
        """Read `array(` data [`, shape=`...] [`, dtype=`...] `)` from behind its name on."""
        self._expect("(")
        self._skip_space()
        block = self._number_block()
        data = None if block else self._value(depth + 1)
        shape: tuple[int, ...] | None = None
        dtype: np.dtype[Any] | None = None
        while not self._taken(")"):
            self._expect(",")
            self._skip_space()
            option = self._match(_NAME, "'shape' or 'dtype'")[0]
            self._expect("=")
            if option == "shape":
                shape = self._shape()
            elif option == "dtype":
                dtype = self._dtype()
            else:
                raise ValueError(f"array() has no option {option!r}")
        with np.errstate(over="ignore"):
            array = _from_numbers(*block, dtype) if block else _from_objects(data, dtype)
        return array if shape is None else array.reshape(shape)

    def _number_block(self) -> tuple[str, tuple[int, ...]] | None:
        """Return the real numbers in nested brackets as text between commas, and their shape.

        It makes no object for each number.
        """
        match = _NUMERIC_BODY.match(self._text, self._at)
        if match is None:
            return None
        body = match[0].rstrip(" \n,")
        skeleton = _NOT_SKELETON.sub("", body).encode()
        dims = block_dims(skeleton) if body[1:-1].strip() else None
        if dims is None:
            return None
        self._at += len(body)
        return body.replace("[", "").replace("]", ""), dims

    def _shape(self) -> tuple[int, ...]:
        self._expect("(")
        sizes: list[int] = []
        while not self._taken(")"):
            if sizes:
                self._expect(",")
                if self._taken(")"):
                    break
            size = self._number()
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"{size} is not a dimension")
            sizes.append(size)
        return tuple(sizes)

    def _dtype(self) -> np.dtype[Any]:
        self._skip_space()
        quoted = _STRING.match(self._text, self._at)
        if quoted is None:
            name = self._match(_NAME, "a dtype")[0]
            if name not in _DTYPES:
                raise ValueError(f"dtype {name!r} is not known here")
            return _DTYPES[name]
        self._at = quoted.end()
        code = quoted[0][1:-1]
        if not _DTYPE_TEXT.fullmatch(code):
            raise ValueError(f"dtype {code!r} is not known here")
        return np.dtype(code)

    # - tokens -

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        if space:
            self._at = space.end()

    def _taken(self, mark: str) -> bool:
        self._skip_space()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _expect(self, mark: str) -> None:
        if not self._taken(mark):
            self._fail(repr(mark))

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(what)
        self._at = match.end()
        return match

    def _fail(self, expected: str) -> NoReturn:
        rest = self._text[self._at : self._at + 20]
        raise ValueError(f"expected {expected} at character {self._at}, found {rest!r}")


def _unquoted(token: str) -> str | bytes:
    if "\\" in token:
        constant: str | bytes = ast.literal_eval(token)  # one quoted constant and nothing else
        return constant
    return token[2:-1].encode("ascii") if token[0] == "b" else token[1:-1]


# Types of the printed elements by kind of dtype; numpy would also convert others.
_PRINTED_AS: dict[str, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {float, int},
    "c": {complex, float, int},
    "U": {str},
    "S": {bytes},
}


def _check_elements(elements: list[Any], types: set[type], dtype: np.dtype[Any] | None) -> None:
    """Raise ValueError for elements that an array of `dtype` never prints."""
    if dtype is None or dtype.kind not in _PRINTED_AS:
        return
    if not types <= _PRINTED_AS[dtype.kind]:
        raise ValueError(f"its dtype says {dtype}, and its elements are something else")
    if dtype.kind in "iu" and elements:
        limits = np.iinfo(dtype)
        if min(elements) < limits.min or max(elements) > limits.max:  # numpy 1 would wrap
            raise ValueError(f"its dtype says {dtype}, and an element is out of its range")


def _from_numbers(flat: str, dims: tuple[int, ...], dtype: np.dtype[Any] | None) -> Array:
    """Return the array of numbers between commas."""
    parts = flat.split(",")
    is_float = dtype is not None and dtype.kind in "fcV"  # bfloat16, a "V", prints 1.0 as 1
    if is_float or any(mark in flat for mark in ".eEn"):
        _check_elements([], {float}, dtype)
        numbers = np.fromiter(map(float, parts), np.float64, count=len(parts))
        return (numbers if dtype is None else numbers.astype(dtype)).reshape(dims)
    integers = list(map(int, parts))
    _check_elements(integers, {int}, dtype)
    return np.array(integers, dtype).reshape(dims)


def _from_objects(data: Any, dtype: np.dtype[Any] | None) -> Array:
    """Return the array of nested lists of any constants."""
    objects = np.array(data, dtype=object)
    elements = objects.ravel().tolist()
    types = set(map(type, elements))
    if types & {list, np.ndarray}:
        raise ValueError("the lists of an array have different lengths")
    if dtype is not None and dtype.kind == "O":
        return objects
    _check_elements(elements, types, dtype)
    widest = max((len(item) for item in elements if isinstance(item, str | bytes)), default=0)
    itemsize = max(4 * widest, 0 if dtype is None else dtype.itemsize)
    is_padded = bool(types & {str, bytes}) and itemsize * objects.size > _MAX_PADDED_BYTES
    return objects if is_padded else np.array(data, dtype)
