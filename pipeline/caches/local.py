"""The cache `local`: answers in the server's memory; the least recently used are removed first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from msgspec import Meta, Struct

from pipeline.engine.op.answer_cache import CacheError

ENTRY_BYTES = 240
"""Bytes that an entry takes beside its value: the key, and its place in the table."""


class LocalOptions(Struct, frozen=True, kw_only=True):
    """`cache.local`."""

    size: Annotated[int, Meta(ge=1), "Maximum size of all answers together, bytes."]


class LocalCache:
    """Values by keys, up to `size` bytes; who was not asked for longest goes first."""

    Options = LocalOptions
    is_shared: bool = False

    def __init__(self, options: LocalOptions) -> None:
        self._size = options.size
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self.used: int = 0
        """Bytes of what is kept."""

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key, which is the last that goes from now on; None: none."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def insert(self, key: bytes, value: bytes) -> None:
        """Keep a value, in the place of the least recently used ones.

        A key that exists keeps its value: two equal requests ran at once. Raises CacheError: the
        value is larger than the cache.
        """
        if key in self._values:
            self._values.move_to_end(key)
            return
        needed = len(value) + ENTRY_BYTES
        if needed > self._size:
            raise CacheError(f"an answer of {needed} bytes is larger than the cache, {self._size}")
        while self.used + needed > self._size:
            _, gone = self._values.popitem(last=False)
            self.used -= len(gone) + ENTRY_BYTES
        self._values[key] = value
        self.used += needed

    def __len__(self) -> int:
        return len(self._values)

    async def close(self) -> None:
        """Forget all values."""
        self._values.clear()
        self.used = 0
