"""What whoever started a server sees of its log: warnings and errors on stderr, one line each."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.observe.lines import LineFormatter, traceback_of
from pipeline.standard_streams import say_on_stderr

_FIRST_S, _NEXT_S = 10.0, 60.0  # what repeats is summed up after so long
_MOST_KINDS = 32  # of lines at a time; what else comes is summed up together
_SHOWN_CHARACTERS = 600  # of a message: what is written at once must fit into a pipe
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_PLACE = re.compile(r'File "(?:[^"\n]*/)?([^"/\n]+)", line (\d+)')

TOLD = {"is_told": True}
"""`extra` of a record that says again what whoever started the server has seen."""


class StderrSink:
    """Warnings and errors on stderr; see `LogSink`.

    The first of its kind is shown at once, those that follow are summed up after 10 s and then
    once a minute. A stderr that nobody reads holds nobody up.

    Args:
        where: the file that has the tracebacks.
    """

    def __init__(self, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._clock = clock
        self._formatter = LineFormatter()
        self._repeats = Repeats()

    def open(self) -> None:
        pass

    def write(self, record: logging.LogRecord) -> None:
        if getattr(record, "is_told", False):
            return
        if self._repeats.is_first(_kind(record), record, self._clock()):
            self._say(record, self._shown(record))

    def rest(self) -> float | None:
        now = self._clock()
        for repeat in self._repeats.due(now):
            self._sum_up(repeat, now)
        return self._repeats.wait_s(now)

    def close(self) -> None:
        now = self._clock()
        for repeat in self._repeats.all():
            self._sum_up(repeat, now)

    def abandon(self) -> None:
        pass

    def _sum_up(self, repeat: Repeat, now: float) -> None:
        text = f"{repeat.count:,} more in {now - repeat.since:.0f} s, the last: "
        self._say(repeat.last, text + self._shown(repeat.last))

    def _say(self, record: logging.LogRecord, message: str) -> None:
        with contextlib.suppress(Exception):  # a stream of the user's own; the files have it all
            say_on_stderr(self._formatter.line(record, message), waits=False)

    def _shown(self, record: logging.LogRecord) -> str:
        """Its message in one line, and where there is more."""
        first, *more = record.getMessage().split("\n")
        second = f": {more[0]}" if more else ""
        text = (first + second)[:_SHOWN_CHARACTERS]
        trace = traceback_of(record) or "\n".join(more[1:])
        if not trace:
            return text
        places = _PLACE.findall(trace)
        place = f"{':'.join(places[-1])}; " if places else ""
        return f"{text} ({place}traceback: {self._where})"


def _kind(record: logging.LogRecord) -> object:
    """The same for records that differ in ids, names and numbers only."""
    text = record.getMessage()[:_SHOWN_CHARACTERS]
    return record.levelno, record.name, record.lineno, _VARIABLE.sub("", text)


@dataclass(slots=True)
class Repeat:
    """Records of one kind, `count` of which were not shown since `since`.

    At `due` it is said how many.
    """

    last: logging.LogRecord
    since: float
    due: float
    count: int = 0


class Repeats:
    """Which records are the first of their kind, and how many others there were. Pure."""

    def __init__(self) -> None:
        self._kinds: dict[object, Repeat] = {}

    def is_first(self, kind: object, record: logging.LogRecord, now: float) -> bool:
        """Whether to show it; if not, it is counted."""
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = None
        repeat = self._kinds.get(kind)
        if repeat is None:
            self._kinds[kind] = Repeat(record, now, now + _FIRST_S)
            return True
        repeat.last = record
        repeat.count += 1
        return False

    def due(self, now: float) -> Iterator[Repeat]:
        """What to sum up now; afterwards it is counted anew, and forgotten if it was quiet."""
        for kind, repeat in list(self._kinds.items()):
            if repeat.due > now:
                continue
            if not repeat.count:
                del self._kinds[kind]
                continue
            yield repeat
            repeat.count, repeat.since, repeat.due = 0, now, now + _NEXT_S

    def all(self) -> Iterator[Repeat]:
        """What was not said yet."""
        return (repeat for repeat in self._kinds.values() if repeat.count)

    def wait_s(self, now: float) -> float | None:
        """How long until something is due."""
        due = min((repeat.due for repeat in self._kinds.values()), default=None)
        return None if due is None else max(0.0, due - now)


def is_wanted(when: str) -> bool:
    """Whether stderr is to have lines, by `log.stderr`."""
    if when == "terminal":
        return sys.stderr is not None and sys.stderr.isatty()
    return when == "always"
