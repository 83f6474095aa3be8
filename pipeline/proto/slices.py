"""Work of a caller's size in slices: between two slices other threads run, and work may stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import ClosedError, TooLargeError

SHORT_BYTES = 64 * 1024
"""Data of at most this size are read and written on the calling thread, also on the event loop
(0.1 ms)."""

SLICE = 8192
"""Elements that code which holds the GIL processes without a pause."""

SLICE_BYTES = 128 * 1024

Piece = bytes | memoryview
"""A piece of a message."""

MAX_TENSORS = 2**14
"""Limit of tensors in one message, and of members in JSON objects that are tensors."""

_OBJECT_BYTES = 64  # minimum size of a Python number, text or list
_FEW = 64  # items of a list that are weighed one by one
_FLAT = (str, bytes, bytearray, memoryview)
_NESTED = (dict, list, tuple)
_thread = threading.local()


class Limits(msgspec.Struct, frozen=True):
    """Limits of content that is costly per byte.

    `json_bytes` limits JSON, and the text of an array. `text_elements` limits strings and elements
    of BYTES, each of which becomes a Python object. `message_bytes` limits messages on the wire and
    as arrays. `json_objects` limits lists and objects in a request's JSON: Python's collector
    visits all of them at once, while all other threads wait.
    """

    json_bytes: int = 16 * 2**20
    text_elements: int = 2**20
    message_bytes: int = 256 * 2**20
    json_objects: int = 300_000

    def check_texts(self, count: int) -> None:
        """Raise TooLargeError for too many strings or elements of BYTES."""
        if count > self.text_elements:
            raise TooLargeError(
                f"{count} strings or elements of BYTES are more than max_text_elements "
                f"({self.text_elements})"
            )

    def check_objects(self, count: int, what: str) -> None:
        """Raise TooLargeError for too many lists and objects of JSON in `what`."""
        if count > self.json_objects:
            raise TooLargeError(
                f"{what} has {count} lists and objects, more than max_json_objects "
                f"({self.json_objects}): send numbers in flat lists, or less at once"
            )

    def check_json(self, size: int, mend: str) -> None:
        """Raise TooLargeError for too many bytes of JSON or text; `mend` says what to do."""
        if size > self.json_bytes:
            raise TooLargeError(
                f"the answer is larger than max_json_bytes ({self.json_bytes} bytes): {mend}"
            )


class AbandonedError(ClosedError):
    """No caller waits for the work any more."""


class wanted_while:  # reads well in a `with`
    """Makes `breathe` end this thread's work in the block once it is not wanted."""

    __slots__ = ("_is_wanted",)

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted

    def __enter__(self) -> None:
        _thread.is_wanted = self._is_wanted

    def __exit__(self, *error: object) -> None:
        del _thread.is_wanted


def breathe() -> None:
    """Let other threads run. Raises AbandonedError: no caller waits for the work."""
    is_wanted: Callable[[], bool] | None = getattr(_thread, "is_wanted", None)
    if is_wanted is not None:
        time.sleep(0)  # gives up the GIL
        if not is_wanted():
            raise AbandonedError("nobody waits for this any more")


def sliced(items: Any, size: int = 0) -> Iterator[Any]:
    """Yield slices of a sequence or 1-D array; other threads run before each.

    `size` limits the elements of a slice; 0 means SLICE.
    """
    size = size or SLICE
    for at in range(0, len(items), size):
        breathe()
        yield items[at : at + size]


def joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Join the pieces while other threads run; `bytes.join` allows that if all are bytes."""
    parts: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            parts.append(piece)
            continue
        parts.extend(map(bytes, sliced(piece, SLICE_BYTES)))
    return b"".join(parts)


def weight(value: object, most: int = SHORT_BYTES) -> int:
    """Estimate the bytes of a value of an answer or a request; stop counting near `most`."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "O":
            return int(value.nbytes)
        total = value.size * _OBJECT_BYTES
        return total if total > most else _weight_of(value.ravel().tolist(), total, most)
    if isinstance(value, _FLAT):
        return len(value)
    if not isinstance(value, _NESTED):
        return _OBJECT_BYTES
    total = len(value) * _OBJECT_BYTES
    if len(value) > _FEW:
        return most + total
    return _weight_of(value.values() if isinstance(value, dict) else value, total, most)


def _weight_of(values: Iterable[object], total: int, most: int) -> int:
    for item in values:
        total += weight(item, most)
        if total > most:
            break
    return total


def is_short(values: Mapping[str, object]) -> bool:
    """Return whether values are small enough to be read and written on the event loop."""
    total = len(values) * _OBJECT_BYTES
    for value in values.values():
        if type(value) is np.ndarray and value.dtype.kind != "O":  # as nearly always
            total += value.nbytes
        else:
            return weight(values) <= SHORT_BYTES
    return total <= SHORT_BYTES and len(values) <= _FEW


def is_short_text(payload: Mapping[str, object]) -> bool:
    """Return whether the payload is a few short texts."""
    if len(payload) > _FEW:
        return False
    total = 0
    for value in payload.values():
        if type(value) is not str:
            return False
        total += len(value)
    return total <= SHORT_BYTES // 2
