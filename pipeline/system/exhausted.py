"""Errors of a process for which the system has no memory or no thread left, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pipeline.errors import InitError

_NO_THREAD = "can't start new thread"


@contextlib.contextmanager
def exhaustion_named() -> Iterator[None]:
    """Raise InitError where this process may have no more memory, or no more threads."""
    try:
        yield
    except MemoryError as error:
        raise InitError(
            "the server ends: no memory is left for this process. Raise its limit "
            "(ulimit -v, the container's memory), or give it fewer workers or smaller models."
        ) from error
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        raise InitError(
            "the server ends: the system starts no more threads for this process. Raise "
            "its limits (ulimit -v, ulimit -u, the container's pids), or give it fewer workers."
        ) from error
