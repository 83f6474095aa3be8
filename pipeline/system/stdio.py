"""Standard streams, which may be closed, full, or without a reader."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TextIO


def ensure_stdio() -> None:
    """Put /dev/null where stdin, stdout or stderr are closed.

    Otherwise a socket of the event loop gets such a number, and libuv aborts the process when it
    closes the socket. Call this before any file is opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(null, True)


def write_out(stream: TextIO, text: str) -> None:
    """Write `text` at once, bypassing the buffer of a stream with a descriptor.

    Python flushes the buffer when it ends. Without a reader of stderr the process would then have
    the exit status 120; with a full pipe as stderr it would never end.

    Raises:
        OSError: it cannot be written.
        ValueError: the stream was closed.
    """
    number = _descriptor(stream)
    if number is None:
        stream.write(text)
        stream.flush()
        return
    data = text.encode(stream.encoding, "backslashreplace")
    while data:
        data = data[os.write(number, data) :]


def say_on_stderr(line: str, waits: bool = True, end: str = "\n") -> None:
    """Write a line to stderr, if it exists and has a reader.

    Up to 4096 bytes are written in one piece. Unless `waits`, nothing is written to a full pipe or
    terminal.
    """
    stream = sys.stderr
    if stream is None:  # the process was started without descriptor 2
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
        if waits or _has_room(stream):
            write_out(stream, f"{line}{end}")


def _has_room(stream: TextIO) -> bool:
    """Return whether 4096 bytes can be written at once."""
    number = _descriptor(stream)
    if number is None:
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


def _descriptor(stream: TextIO) -> int | None:
    """Return a file's descriptor; None for a stream in memory, closed, or of a user's class."""
    if isinstance(stream, io.TextIOWrapper) and not stream.closed:
        with contextlib.suppress(io.UnsupportedOperation):
            return stream.fileno()
    return None
