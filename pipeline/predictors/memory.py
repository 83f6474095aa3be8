"""Host memory that loading a model takes, as far as that can be told."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import msgspec


class MemoryUse(msgspec.Struct, frozen=True, array_like=True):
    """`kind` is Triton's: "CPU", "CPU_PINNED" or "GPU"; `id` the card's number."""

    kind: str
    id: int
    byte_size: int


class LoadMeter:
    """A measurement of a load in its `with` block: by how much this process grew.

    Where other loads ran in the same process meanwhile it cannot tell whose memory it was.
    """

    _lock = threading.Lock()
    _begun = 0
    _running = 0

    def __enter__(self) -> LoadMeter:
        with LoadMeter._lock:
            LoadMeter._begun += 1
            LoadMeter._running += 1
            self._number = LoadMeter._begun
            self._is_alone = LoadMeter._running == 1
        self._before = _resident_bytes()
        return self

    def uses(self) -> Sequence[MemoryUse]:
        """Return what was taken so far; nothing if that is not known, or not positive."""
        grown = _resident_bytes() - self._before
        with LoadMeter._lock:
            is_alone = self._is_alone and LoadMeter._begun == self._number
        return [MemoryUse("CPU", 0, grown)] if is_alone and grown > 0 else []

    def __exit__(self, *_: object) -> None:
        with LoadMeter._lock:
            LoadMeter._running -= 1


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # another system than Linux
        return 0
