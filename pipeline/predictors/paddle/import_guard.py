"""Guard of the process around an import of Paddle."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import warnings
from collections.abc import Iterator

# Paddle takes these for itself, also SIGTERM: a server told to stop would print a stack of C++
# and die. `paddle.disable_signal_handler` sets the default actions, not those from before.
_TAKEN = (
    signal.SIGSEGV,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGTERM,
)
_MAX_ACTION_BYTES = 512  # struct sigaction has 152 on Linux


@contextlib.contextmanager
def preserve_process_state() -> Iterator[None]:
    """Keep signal handlers, the root logger and the filters of warnings as they are.

    Paddle also adds a handler to the root logger and sets its level, and warns of tools that only
    its extensions need.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    # Its C++ part would otherwise write INFO lines to stderr until the first model is loaded.
    os.environ.setdefault("GLOG_minloglevel", "2")
    try:
        with _signals_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
        root.setLevel(level)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep all handlers; Python's `signal` knows and sets only its own, on the main thread."""
    sigaction = ctypes.CDLL(None).sigaction
    kept = {number: ctypes.create_string_buffer(_MAX_ACTION_BYTES) for number in _TAKEN}
    for number, action in kept.items():
        sigaction(int(number), None, action)
    # One that comes meanwhile waits, where this is the only thread.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        for number, action in kept.items():
            sigaction(int(number), action, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
