"""ProgressLine: a line on a terminal that shows progress."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

_INTERVAL_S = 0.2
_WIDTH = 24
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A bar that fills over the expected seconds; without them a clock.

    Args:
        stream: where it is drawn, if that is a terminal.
        what: the action, in a few words.
        seconds: its expected duration; None: unknown.
        delay_s: nothing is drawn before.
    """

    def __init__(
        self,
        stream: TextIO | None,
        what: str,
        seconds: float | None = None,
        delay_s: float = _INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None and _is_terminal(stream) else None
        self._what = what
        self._seconds = seconds
        self._delay_s = delay_s
        self._clock = clock
        self._begin = clock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def line(self) -> str:
        """Return the current line."""
        took_s = self._clock() - self._begin
        if self._seconds is None:
            return f"{self._what} ({took_s:.0f} s)"
        filled = min(_WIDTH, round(_WIDTH * took_s / self._seconds))
        return f"{self._what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {took_s:.0f} s"

    def __enter__(self) -> Self:
        if self._stream is not None:
            self._begin = self._clock()
            self._thread = threading.Thread(target=self._draw, args=(self._stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the line; no effect the second time."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _draw(self, stream: TextIO) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is closed
            if self._over.wait(self._delay_s):
                return
            while True:
                stream.write(_CLEAR + self.line())
                stream.flush()
                if self._over.wait(_INTERVAL_S):
                    break
            stream.write(_CLEAR)
            stream.flush()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return not stream.closed and stream.isatty()
    except ValueError:  # it was closed
        return False
