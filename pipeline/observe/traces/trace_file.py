"""TraceFile: JSON arrays of traces, as Triton's server writes them; for one thread."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import BinaryIO

_LOGGER = logging.getLogger(__name__)


class TraceFile:
    """The file of a name, and those with a number behind it.

    The first is a whole JSON array after each `append`; one that was there is written anew.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._is_broken = False
        self._next = 0

    def append(self, entries: bytes) -> None:
        """Add entries, with commas between, to the file."""
        if self._is_broken:
            return
        try:
            if self._file is None:
                self._file = Path(self._path).open("wb")  # noqa: SIM115  # until `close`
                self._file.write(b"[" + entries + b"]")
            else:
                self._file.seek(-1, 2)
                self._file.write(b"," + entries + b"]")
            self._file.flush()
        except OSError as error:
            self._is_broken = True  # told once
            self._tell(self._path, error)

    def write_next(self, entries: bytes) -> None:
        """Write entries, with commas between, to the next file with a number."""
        path, self._next = f"{self._path}.{self._next}", self._next + 1
        try:
            Path(path).write_bytes(b"[" + entries + b"]")
        except OSError as error:
            self._tell(path, error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _tell(self, path: str, error: OSError) -> None:
        _LOGGER.error("traces cannot be written to %s: %s", path, error.strerror)
