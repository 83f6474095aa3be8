"""Long texts in the body of a request to load a model: its files, in base64, of any size.

A parser that makes objects of hundreds of MiB keeps every other thread waiting for as long.
"""

from __future__ import annotations

import base64
import binascii
import os

import orjson

from pipeline.errors import TooLargeError
from pipeline.proto.slices import SLICE_BYTES, breathe, sliced

_LONG_BYTES = 2**20  # of a text that is left where it is
_MOST_TEXTS = 2**16
_WINDOW_BYTES = 2**22  # that are looked through in one go
_BACKSLASH = ord("\\")

Long = dict[str, memoryview]
"""Long texts, as they stand in the JSON, by what stands there in their places."""


def cut(body: bytes) -> tuple[bytes, Long]:
    """Return a JSON without its long texts, and these.

    Raises TooLargeError: it has more texts than such a request needs.
    """
    parts: list[bytes] = []
    long: Long = {}
    behind = at = 0
    mark = os.urandom(8).hex()  # no caller knows it: a short text is never taken for a long one
    for _ in range(_MOST_TEXTS):
        start = _quote(body, at)
        end = -1 if start < 0 else _end_of(body, start)
        if end < 0:  # that was the last one; or it is no JSON, as the parser says
            return b"".join((*parts, body[behind:])) if parts else body, long
        if end - start > _LONG_BYTES:
            name = f"{mark} {len(long)}"
            parts += [body[behind : start + 1], name.encode()]
            long[name] = memoryview(body)[start + 1 : end]
            behind = end
        at = end + 1
    raise TooLargeError(f"the load model request has more than {_MOST_TEXTS} texts")


def text_of(value: str, long: Long) -> str:
    """Return a text of the JSON that `cut` returns."""
    found = long.get(value)
    text: str = value if found is None else orjson.loads(b'"%b"' % bytes(found))
    return text


def bytes_of(value: str, long: Long) -> bytes:
    """Return the bytes of a base64 among these texts. Raises binascii.Error: it is none."""
    found: bytes | memoryview | None = long.get(value)
    if found is None:
        found = value.encode()
    pieces: list[bytes] = []
    for part in sliced(found, SLICE_BYTES):
        if pieces and len(pieces[-1]) % 3:
            raise binascii.Error("there is padding before its end")
        try:
            pieces.append(base64.b64decode(bytes(part), validate=True))
        except binascii.Error:
            if b"\\" not in bytes(part):
                raise
            return base64.b64decode(text_of(value, long), validate=True)  # slashes are escaped
    return b"".join(pieces)


def _quote(body: bytes, at: int) -> int:
    """Return where the next quote is; -1: nowhere."""
    while at < len(body):
        found = body.find(b'"', at, at + _WINDOW_BYTES)
        if found >= 0:
            return found
        at += _WINDOW_BYTES
        breathe()
    return -1


def _end_of(body: bytes, start: int) -> int:
    """Return where the text ends that begins with a quote; -1: nowhere."""
    end = _quote(body, start + 1)
    while end >= 0:
        before = end - 1
        while body[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:  # the quote itself is not escaped
            return end
        end = _quote(body, end + 1)
    return -1
