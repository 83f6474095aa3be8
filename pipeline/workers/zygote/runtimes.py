"""Imports before a fork, once for all children, if the process can still be forked."""

from __future__ import annotations

import contextlib
import gc
import os
import pkgutil
from collections.abc import Callable, Sequence

_CARDS = "/dev/nvidia"
_GOOD = "good"
_VERDICT_BYTES = 200


def fork_with(places: Sequence[str], fork: Callable[[], int]) -> tuple[int, str]:
    """Fork a process that calls functions "module:function", each of which imports something.

    Returns the child's pid, 0 in the child itself, and why the child cannot be forked: then it has
    ended.

    Raises:
        OSError: no more processes or memory.
    """
    if not places:
        return fork(), ""
    verdict, our_verdict = os.pipe2(os.O_CLOEXEC)
    with (
        open(verdict, "rb", buffering=0) as reader,
        open(our_verdict, "wb", buffering=0) as writer,
    ):
        pid = fork()
        if pid == 0:
            try:
                reason = _imported(places)
                writer.write((reason or _GOOD).encode())
            except OSError:  # the caller would continue as if it were the parent
                os._exit(1)
            if reason:
                os._exit(0)
            return 0, ""
        writer.close()
        reply = (reader.read(_VERDICT_BYTES) or b"").decode()
    return pid, "" if reply == _GOOD else reply or "it ends the process"


def _imported(places: Sequence[str]) -> str:
    """Import; return why this process cannot be forked now.

    A child does not have threads that an import has started, and the locks that they held stay
    locked; an opened card cannot be used there.
    """
    threads = _threads()
    for place in places:
        with contextlib.suppress(Exception):  # the worker that needs it fails, and reports why
            pkgutil.resolve_name(place)()
    if more := len(_threads() - threads):
        return f"it starts threads ({more})"
    if any(name.startswith(_CARDS) for name in _open_files()):
        return "a card is open"
    gc.freeze()
    return ""


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _open_files() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return names
