"""Large JSON: its structure is read at once, which is quick, its long arrays in pieces.

A parser that makes objects of 16 MiB of JSON stops all other threads for 0.1 to 2 s and needs
thirty times the memory. msgspec checks it in 25 ms without making objects. Long arrays stay text,
which `LongArray.pieces` reads.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import orjson

from pipeline.errors import PackageError, TooLargeError
from pipeline.proto.pipeline.shapes import block_dims
from pipeline.proto.slices import MAX_TENSORS, SHORT_BYTES, breathe

_WINDOW_BYTES = 32 * 1024  # read at once
MARKS = {"\0NaN": math.nan, "\0Infinity": math.inf, "\0-Infinity": -math.inf}
_UNQUOTED = re.compile(rb'"(?:[^"\\]|\\.)*+"|(-?Infinity|NaN)', re.DOTALL)
_MAX_WHOLE_BYTES = 2**20  # bytes of what is read at once
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_STRING_OR_BRACKET = re.compile(rb'("(?:[^"\\]|\\.)*+")|[\[\]]', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))


class NotJsonError(PackageError):
    """The text is not valid JSON."""


class UnevenError(PackageError):
    """The elements include lists or objects, or nested lists have different lengths."""


class LongArray:
    """A JSON list that is still text, with checked syntax.

    Attributes:
        text: the list with its brackets.
        is_marked: whether strings of MARKS replace numbers that JSON lacks.
    """

    __slots__ = ("is_marked", "text")

    def __init__(self, text: memoryview, is_marked: bool = False) -> None:
        self.text: memoryview[int] = text
        self.is_marked: bool = is_marked

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the elements in order. Raises UnevenError for a list or object among them."""
        for window in self.windows():
            yield self._numbered(_parsed(window))

    def whole(self, what: str) -> list[Any]:
        """Return all elements, of any kind.

        Raises:
            TooLargeError: `what` is too large to be read at once.
        """
        if len(self.text) > _MAX_WHOLE_BYTES:
            text = (
                f"{what} of the request has {len(self.text)} bytes, {_MAX_WHOLE_BYTES} are allowed"
            )
            raise TooLargeError(text)
        return self._numbered(_loaded(self.text))

    def flat_pieces(self) -> Iterator[list[Any]]:
        """Yield the innermost elements of nested lists. Raises UnevenError: lengths differ."""
        if not bytes(self.text[1:SHORT_BYTES]).lstrip().startswith(b"["):
            yield from self.pieces()
            return
        if block_dims(self._skeleton()) is None:
            raise UnevenError
        for window in self.windows():
            flat = (
                _STRING_OR_BRACKET.sub(rb"\1", window)
                if b'"' in window
                else window.translate(None, b"[]")
            )
            yield self._numbered(_parsed(flat))

    def _numbered(self, values: list[Any]) -> list[Any]:
        if not self.is_marked or str not in set(map(type, values)):
            return values
        return [MARKS.get(value, value) if type(value) is str else value for value in values]

    def index_of_container(self) -> int:
        """Return the index of the first element that is a list or object."""
        at = 0
        for window in self.windows():
            text = _STRING.sub(b"", window)
            place = min((text.find(mark) for mark in (b"[", b"{") if mark in text), default=-1)
            if place >= 0:
                return at + text.count(b",", 0, place)
            at += text.count(b",") + 1
        return at

    def _skeleton(self) -> bytes:
        parts = []
        for window in self.windows():
            text = _STRING.sub(b"", window) if b'"' in window else window
            parts.append(text.translate(None, _NOT_STRUCTURE))
        return b"[" + b",".join(parts) + b"]"

    def windows(self) -> Iterator[bytes]:
        """Yield the text between the brackets, cut at commas outside of strings."""
        at, end, size = 1, len(self.text) - 1, _WINDOW_BYTES
        while at < end:
            breathe()
            window = bytes(self.text[at : min(at + size, end)])
            cut = len(window) if at + size >= end else _last_comma(window)
            if cut < 0:  # one string is longer than the window
                size *= 16
                continue
            yield window[:cut]
            at += cut + 1
            size = _WINDOW_BYTES


def _last_comma(window: bytes) -> int:
    """Return the position of the last comma outside of strings; the window begins outside one."""
    if b"\\" in window:
        window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    cut = window.rfind(b",")
    while cut >= 0 and window.count(b'"', 0, cut) % 2:
        cut = window.rfind(b",", 0, window.rfind(b'"', 0, cut))
    return cut


def _parsed(elements: bytes) -> list[Any]:
    try:
        values: list[Any] = orjson.loads(b"[%b]" % elements)
    except orjson.JSONDecodeError as error:
        plain = _STRING.sub(b"", elements)
        if b"[" in plain or b"{" in plain or b",," in plain or not plain.strip(b", "):
            raise UnevenError from None
        raise NotJsonError(error.msg) from None
    return values


# --- structure --------------------------------------------------------------------------------


def struct_of(names: list[str], forbids_others: bool = False) -> type[msgspec.Struct]:
    """Return a Struct whose members stay text; `members_of` reads them."""
    return msgspec.defstruct(
        "Members",
        [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in names],
        forbid_unknown_fields=forbids_others,
    )


def first_other(text: bytes, kind: type[msgspec.Struct]) -> str | None:
    """Return the first name in a JSON object that `kind`, a strict Struct, lacks."""
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        return str(error).partition("`")[2].rpartition("`")[0]
    return None


def members_of(
    text: bytes | bytearray | memoryview | msgspec.Raw, kind: type[msgspec.Struct]
) -> dict[str, memoryview]:
    """Return the present members of a JSON object in the order of the text.

    Of other members only the syntax is checked: a number there may be too large for a double.

    Raises:
        NotJsonError: the text is not valid JSON.
        TypeError: it is JSON, but not an object.
    """
    try:
        try:
            return _members(msgspec.json.decode(text, type=kind))
        except msgspec.ValidationError as error:
            msgspec.json.decode(text, type=msgspec.Raw)  # is it JSON at all?
            raise TypeError(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def _members(struct: msgspec.Struct) -> dict[str, memoryview]:
    raws = {name: getattr(struct, name) for name in struct.__struct_fields__}
    views = [(name, memoryview(raw)) for name, raw in raws.items() if raw is not msgspec.UNSET]

    def address(member: tuple[str, memoryview]) -> int:
        place: int = np.frombuffer(member[1], np.uint8).__array_interface__["data"][0]
        return place

    return dict(sorted(views, key=address))


def elements_of(
    text: memoryview, kind: type[msgspec.Struct], what: str
) -> list[dict[str, memoryview]]:
    """Return the members of each object in a list of them.

    Raises:
        TooLargeError: there are too many objects in it, those within its elements as well; `what`
            these are.
        TypeError: it is not a list of objects; the text says where.
    """
    count = sum(
        (_STRING.sub(b"", window) if b'"' in window else window).count(b"{")
        for window in LongArray(text).windows()
    )
    if count > MAX_TENSORS:
        raise TooLargeError(f"the request has more than {MAX_TENSORS} objects in its {what}")
    try:
        elements = msgspec.json.decode(text, type=list[kind])  # type: ignore[valid-type]  # a value
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from None
    return list(map(_members, elements))


def marked(text: bytes | memoryview) -> bytes:
    """Return JSON with strings in place of NaN and the infinities, which strict parsers refuse."""
    view = memoryview(bytes(text).strip())

    def mark(match: re.Match[bytes]) -> bytes:
        return b'"\\u0000%b"' % match[1] if match[1] else match[0]

    windows = (_UNQUOTED.sub(mark, window) for window in LongArray(view).windows())
    return b"".join((view[:1], b",".join(windows), view[-1:]))


def value_of(text: memoryview, is_marked: bool = False) -> Any:
    """Return the value of a member: a long list as a LongArray, others as orjson reads them."""
    if len(text) > SHORT_BYTES:
        kind = bytes(text[:1])
        if kind == b"[":
            return LongArray(text, is_marked)
        if kind == b"{" and len(text) > _MAX_WHOLE_BYTES:
            raise TooLargeError(f"the request has an object of {len(text)} bytes")
    return _loaded(text)


def _loaded(text: memoryview) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NotJsonError(error.msg) from None


def check_utf8(body: bytes | memoryview) -> None:
    """Raise NotJsonError for invalid UTF-8, which readers miss in strings that they skip."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    try:
        for at in range(0, len(view), _WINDOW_BYTES):
            decoder.decode(view[at : at + _WINDOW_BYTES])
            breathe()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise NotJsonError(f"str is not valid UTF-8: {error.reason}") from None
