"""TempDir: a folder that lives as long as a server does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from pipeline.errors import InitError


class TempDir:
    """A folder in the system's temporary folder that no other user of the machine can enter.

    It is locked, because many systems delete old temporary files, but a restarted process may need
    the folder after weeks; systemd-tmpfiles skips locked folders. Errors name the user of the
    folder, `whose`.
    """

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._path: Path | None = None
        self._lock: int | None = None

    def make(self) -> Path:
        """Return the folder; the first call makes it. Raises InitError."""
        if self._path is None:
            try:
                self._path = Path(tempfile.mkdtemp(prefix="pipeline-"))
                self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                raise InitError(f"{self._whose} need a temporary folder: {error}") from error
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return self._path

    def remove(self) -> None:
        """Remove the folder and its content, if it was made."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._path = self._lock = None
