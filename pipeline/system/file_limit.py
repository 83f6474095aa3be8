"""Limit of open files: each connection is one, and 1,024 are what most systems begin with."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> None:
    """Let this process open as many files as its user may, as Go's servers do.

    Processes that it starts from now on may as well.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a system that keeps less for itself
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def most_open_files() -> int:
    """Return how many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
