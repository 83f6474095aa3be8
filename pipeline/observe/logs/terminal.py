"""StderrSink: warnings and errors on the server's terminal, one line each."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.errors import printable
from pipeline.observe.logs.lines import LineFormatter, traceback_of
from pipeline.observe.logs.sinks import LogSink
from pipeline.system.startup_log import PATIENCE_S, STARTUP, who_ended, who_loads
from pipeline.system.stdio import say_on_stderr

_FIRST_S, _NEXT_S = 10.0, 60.0  # intervals of the summary of repeated lines
_MAX_KINDS = 32  # of lines at a time; further kinds are summed up together
_SHOWN_CHARACTERS = 600  # of a message: a write must fit into a pipe
_LIVE_S = 1.0
_LIVE_CHARACTERS = 79
_ERASE = "\x1b[2K"  # the line of the cursor
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_PLACE = re.compile(r'File "(?:[^"\n]*/)?([^"/\n]+)", line (\d+)')

TOLD = {"is_told": True}
"""`extra` of a record that repeats what the terminal has already shown."""


def is_shown(record: logging.LogRecord) -> bool:
    """Return whether stderr gets a record: warnings, errors, and loading Ops."""
    is_grave = record.levelno >= logging.WARNING or record.name == STARTUP
    return is_grave and not getattr(record, "is_told", False)  # given as `extra`


class StderrSink(LogSink):
    """A LogSink of records that are `is_shown`, on stderr.

    The first of a kind is shown at once; later ones are counted and summed up after 10 s, and then
    once a minute. A stderr that nobody reads delays nothing. On a terminal the last line shows the
    time of a load. The file `where` has the tracebacks.
    """

    def __init__(self, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._clock = clock
        self._formatter = LineFormatter()
        self._repeats = Repeats()
        self._loading = Loading()

    def write(self, record: logging.LogRecord) -> None:
        if record.name == STARTUP:
            if self._loading.take(record, self._clock()):
                self._say(record, record.getMessage())
            return
        # The same for records that differ only in ids, names and numbers.
        text = _VARIABLE.sub("", record.getMessage()[:_SHOWN_CHARACTERS])
        kind = record.levelno, record.name, record.lineno, text
        record.msg, record.args = self._shown(record), None
        record.exc_info = None  # it refers to the data of a request
        if self._repeats.is_first(kind, record, self._clock()):
            self._say(record, record.msg)

    def rest(self) -> float | None:
        now = self._clock()
        for repeat in self._repeats.due(now):
            self._sum_up(repeat, now)
        return self._loading.draw(now) or self._repeats.wait_s(now)

    def close(self) -> None:
        now = self._clock()
        self._loading.end()
        for repeat in self._repeats.all():
            self._sum_up(repeat, now)

    def _sum_up(self, repeat: Repeat, now: float) -> None:
        text = f"{repeat.count:,} more in {now - repeat.since:.0f} s, the last: "
        self._say(repeat.last, text + repeat.last.msg)

    def _say(self, record: logging.LogRecord, message: str) -> None:
        with contextlib.suppress(Exception):  # a stream of the user's own; the files have it all
            self._loading.erase()
            say_on_stderr(self._formatter.line(record, message), waits=False)

    def _shown(self, record: logging.LogRecord) -> str:
        """Return its message in one line, and where there is more."""
        first, *more = record.getMessage().split("\n")
        second = f": {more[0]}" if more else ""
        text = (first + second)[:_SHOWN_CHARACTERS]
        trace = traceback_of(record) or "\n".join(more[1:])
        if not trace:
            return text
        places = _PLACE.findall(trace)
        place = f"{':'.join(places[-1])}; " if places else ""
        return f"{text} ({place}traceback: {self._where})"


class Loading:
    """The Ops that are loading, in any process; a terminal's last line shows for how long."""

    def __init__(self) -> None:
        self._since: dict[tuple[int | None, str], float] = {}  # by process and name
        self._is_drawn = False

    def take(self, record: logging.LogRecord, now: float) -> bool:
        """Note what a record of STARTUP says; whether it is the first, or the last, to say so."""
        message = record.getMessage()
        who, ended = who_loads(message), who_ended(message)
        is_first = not any(name == who for _, name in self._since)
        if who:
            self._since[record.process, who] = now - PATIENCE_S
        self._since.pop((record.process, ended), None)
        return is_first if who else not any(name == ended for _, name in self._since)

    def draw(self, now: float) -> float | None:
        """Show it; return the seconds until the next time, None: nothing is loading, or no
        terminal.
        """
        if not self._since or not is_wanted("terminal") or os.environ.get("TERM") == "dumb":
            self.erase()
            return None
        (_, who), since = next(iter(self._since.items()))
        others = f", and {len(self._since) - 1} more" if len(self._since) > 1 else ""
        text = printable(f"{who}: loading for {now - since:.0f} s{others}")[:_LIVE_CHARACTERS]
        self._write(f"{_ERASE}{text}\r")  # other output begins at the start of the line
        self._is_drawn = True
        return _LIVE_S

    def erase(self) -> None:
        """Make room for a line of its own."""
        if self._is_drawn:
            self._is_drawn = False
            self._write(_ERASE)

    def end(self) -> None:
        """Forget what was loading."""
        self._since.clear()
        self.erase()

    def _write(self, text: str) -> None:
        with contextlib.suppress(Exception):  # a stream of the user's own
            say_on_stderr(text, waits=False, end="")


@dataclass(slots=True)
class Repeat:
    """Records of one kind; `count` of them were not shown since `since`.

    At `due` the number is shown, with the message of `last`.
    """

    last: logging.LogRecord
    since: float
    due: float
    count: int = 0


class Repeats:
    """The kinds of records that have been shown, and how many followed of each. Pure."""

    def __init__(self) -> None:
        self._kinds: dict[object, Repeat] = {}

    def is_first(self, kind: object, record: logging.LogRecord, now: float) -> bool:
        """Return whether to show a record; otherwise count it."""
        if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            kind = None
        repeat = self._kinds.get(kind)
        if repeat is None:
            self._kinds[kind] = Repeat(record, now, now + _FIRST_S)
            return True
        repeat.last = record
        repeat.count += 1
        return False

    def due(self, now: float) -> Iterator[Repeat]:
        """Yield the kinds to sum up now; their count restarts, and quiet kinds are forgotten."""
        for kind, repeat in list(self._kinds.items()):
            if repeat.due > now:
                continue
            if not repeat.count:
                del self._kinds[kind]
                continue
            yield repeat
            repeat.count, repeat.since, repeat.due = 0, now, now + _NEXT_S

    def all(self) -> Iterator[Repeat]:
        """Return all kinds with counts that were not shown yet."""
        return (repeat for repeat in self._kinds.values() if repeat.count)

    def wait_s(self, now: float) -> float | None:
        """Return how long until something is due."""
        due = min((repeat.due for repeat in self._kinds.values()), default=None)
        return None if due is None else max(0.0, due - now)


def is_wanted(when: str) -> bool:
    """Return whether stderr gets lines, by `log.stderr`."""
    if when == "terminal":
        return sys.stderr is not None and sys.stderr.isatty()
    return when == "always"
