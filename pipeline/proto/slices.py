"""Work of a caller's size in slices: between two of them others run, and it may be given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import ClosedError, TooLargeError

SHORT_BYTES = 64 * 1024
"""Up to here data are read and written where they are, on the event loop too (0.1 ms)."""

SLICE = 8192
"""Elements that are processed without a pause, by code that keeps others from running."""

SLICE_BYTES = 128 * 1024

Piece = bytes | memoryview
"""A piece of a message."""

MAX_TENSORS = 2**14
"""Tensors of one message, and members of an object of JSON that are tensors."""

_OBJECT_BYTES = 64  # that a number, text or list of Python takes at least
_FEW = 64  # items that are looked at one by one to tell the weight of a list
_FLAT = (str, bytes, bytearray, memoryview)
_NESTED = (dict, list, tuple)
_thread = threading.local()


class Limits(msgspec.Struct, frozen=True):
    """Limits of what is costly per byte in a message.

    `json_bytes` of JSON, and of text that stands for an array; `text_elements`: strings and
    elements of BYTES, each of which becomes an object of Python. `message_bytes` of anything, on
    the wire and as arrays. `json_objects`: lists and objects in a request's JSON, through all of
    which Python's collector goes at once, while every other thread waits.
    """

    json_bytes: int = 16 * 2**20
    text_elements: int = 2**20
    message_bytes: int = 256 * 2**20
    json_objects: int = 300_000

    def check_texts(self, count: int) -> None:
        """Raise TooLargeError for more strings, or elements of BYTES, than there may be."""
        if count > self.text_elements:
            raise TooLargeError(
                f"{count} strings or elements of BYTES are more than max_text_elements "
                f"({self.text_elements})"
            )

    def check_objects(self, count: int, what: str) -> None:
        """Raise TooLargeError for more lists and objects of JSON than there may be in `what`."""
        if count > self.json_objects:
            raise TooLargeError(
                f"{what} has {count} lists and objects, more than max_json_objects "
                f"({self.json_objects}): send numbers in flat lists, or less at once"
            )

    def check_json(self, size: int, mend: str) -> None:
        """Raise TooLargeError for `size` bytes of JSON or text; `mend`: what to ask for instead."""
        if size > self.json_bytes:
            raise TooLargeError(
                f"the answer is larger than max_json_bytes ({self.json_bytes} bytes): {mend}"
            )


class AbandonedError(ClosedError):
    """Nobody waits for the work any more."""


class wanted_while:  # read as the verb of a `with`
    """Work of this thread, within the block, that `breathe` ends if it is not wanted."""

    __slots__ = ("_is_wanted",)

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted

    def __enter__(self) -> None:
        _thread.is_wanted = self._is_wanted

    def __exit__(self, *error: object) -> None:
        del _thread.is_wanted


def breathe() -> None:
    """Let others run, between two slices. Raises AbandonedError: nobody waits for the work."""
    is_wanted: Callable[[], bool] | None = getattr(_thread, "is_wanted", None)
    if is_wanted is not None:
        time.sleep(0)  # gives up the GIL
        if not is_wanted():
            raise AbandonedError("nobody waits for this any more")


def sliced(items: Any, size: int = 0) -> Iterator[Any]:
    """Yield a sequence, or an array of one dimension, in slices; others run before each.

    `size`: the most elements of a slice, SLICE if it is 0.
    """
    size = size or SLICE
    for at in range(0, len(items), size):
        breathe()
        yield items[at : at + size]


def joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Join the pieces while others run; `bytes.join` lets them where all are bytes."""
    parts: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            parts.append(piece)
            continue
        parts.extend(map(bytes, sliced(piece, SLICE_BYTES)))
    return b"".join(parts)


def weight(value: object, most: int = SHORT_BYTES) -> int:
    """Bytes of a value of an Op's answer or of a request, roughly; counted up to `most` or so."""
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
    """Return whether values of an answer or a request can be read and written on the event loop."""
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
