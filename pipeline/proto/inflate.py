"""Decompression by zlib, in slices and up to a limit."""

from __future__ import annotations

import zlib
from typing import Any

from pipeline.proto.slices import SLICE_BYTES, Piece, breathe


def inflated(data: bytes | memoryview, window_bits: int, most: int) -> bytes:
    """Decompress `data`.

    Raises:
        OverflowError: the result has more than `most` bytes.
        EOFError: `data` end too early.
        ValueError: bytes follow the compressed data; the text is their number.
        zlib.error: `data` are not in this format.
    """
    unpacker = zlib.decompressobj(wbits=window_bits)
    pieces: list[bytes] = []
    size = 0
    view = memoryview(data)
    for at in range(0, len(view), SLICE_BYTES):
        if unpacker.eof:
            raise ValueError(len(view) - at + len(unpacker.unused_data))
        part: bytes | memoryview = view[at : at + SLICE_BYTES]
        while part or (pieces and len(pieces[-1]) == SLICE_BYTES and not unpacker.eof):
            pieces.append(unpacker.decompress(part, SLICE_BYTES))
            part = unpacker.unconsumed_tail
            size += len(pieces[-1])
            if size > most:
                raise OverflowError
            breathe()
    if not unpacker.eof:
        raise EOFError
    if unpacker.unused_data:
        raise ValueError(len(unpacker.unused_data))
    return emptied(pieces)


def emptied(pieces: list[Any]) -> bytes:
    """Join the pieces and empty the list, which frees the pieces."""
    joined = b"".join(pieces)  # lets others run
    pieces.clear()
    return joined


def whole(pieces: list[Piece]) -> Piece:
    """Return the only piece without a copy, or join all pieces; the list is empty afterwards."""
    return pieces.pop() if len(pieces) == 1 else emptied(pieces)
