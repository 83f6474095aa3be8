"""Standard streams as service managers leave them: closed, full, or without a reader."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TextIO


def ensure_stdio() -> None:
    """Put /dev/null where stdin, stdout or stderr are closed.

    Else a socket of the event loop gets their number, and libuv aborts the process when it closes
    that. To be called before anything is opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            os.set_inheritable(null, True)


def write_out(stream: TextIO, text: str) -> None:
    """Write `text` at once, past the buffer of a stream that has a descriptor.

    Python writes a buffer once more when it ends: then a process whose stderr nobody reads any more
    would have the exit status 120, and one whose stderr is a full pipe would never end.

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
    """Write a line to stderr, if there is one, and somebody who reads it.

    Up to 4096 bytes are written in one piece. Unless it `waits`, a pipe or terminal that is full,
    since nobody reads it, gets nothing.
    """
    stream = sys.stderr
    if stream is None:  # as of a process that was started without descriptor 2
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
    """Return that of a file; None for what is in memory, closed, or of somebody's own class."""
    if isinstance(stream, io.TextIOWrapper) and not stream.closed:
        with contextlib.suppress(io.UnsupportedOperation):
            return stream.fileno()
    return None
