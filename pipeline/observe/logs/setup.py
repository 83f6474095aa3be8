"""The server's logs: records under `pipeline` go to PipelineServingLogs/ and to stderr.

The root logger, and the user's loggers and handlers, stay unchanged, except by `RootLines`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.config.schema import LogConfig
from pipeline.errors import printable
from pipeline.observe import otel
from pipeline.observe.logs.lines import RUNNING
from pipeline.observe.logs.remote import RootLines
from pipeline.observe.logs.sinks import FileSink, LogSink, LogWriter, QueueingHandler, StdoutSink
from pipeline.observe.logs.terminal import TOLD, StderrSink, is_shown, is_wanted
from pipeline.tracing.running import Running

FOLDER = "PipelineServingLogs"

_LOGGER = logging.getLogger("pipeline")
_SHOWN_CHARACTERS = 2_000


class LogSwitches(msgspec.Struct, frozen=True):
    """Kinds of records to write; `verbose` above 0: also records for debugging."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose: int = 0

    def lets(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written, as a filter of a handler."""
        level = record.levelno
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        return self.info if level >= logging.INFO else True

    def least(self, level: int) -> int:
        """Return the lowest level to handle, if `level` is configured."""
        return min(level, logging.DEBUG) if self.verbose > 0 else level


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination of records from `level` on. Sessions of one `key` share what `make` makes.

    `wants` picks records; by default it takes all of them.
    """

    key: object
    level: int
    make: Callable[[], LogSink]
    wants: Callable[[logging.LogRecord], bool] | None = None


def open_logs(log: LogConfig, directory: str | Path | None = None) -> LogSession:
    """Open the logs. Raises InitError with the folder or file that cannot be written.

    Parallel sessions share the loggers of this process, so each folder gets the lines of all; a
    folder that is open already keeps its rotation. The files are in `directory`, otherwise in
    `log_folder()`, which is created if it is missing.
    """
    level, is_json = logging.getLevelNamesMapping()[log.level], log.format == "json"
    if log.to == "stdout":
        destinations = [Destination("stdout", level, lambda: StdoutSink(is_json))]
    else:
        folder = Path(os.path.realpath(log_folder() if directory is None else directory))
        files = functools.partial(FileSink, folder, log.max_bytes, log.backup_count, is_json)
        destinations = [Destination(folder, level, files)]
        if is_wanted(log.stderr):
            path = folder / "pipeline.log"
            hint = min(str(path), os.path.relpath(path), key=len)
            destinations.append(Destination("stderr", level, lambda: StderrSink(hint), is_shown))
    session = LogSession(destinations)
    _OPEN.add(session)
    return session


def open_otel_logs(pipeline_name: str, log: LogConfig) -> AbstractContextManager[object]:
    """Open the export of logs to OpenTelemetry's collectors. Raises InitError, see
    `otel.open_logs`.

    No effect if the environment disables it.
    """
    sink = otel.open_logs(pipeline_name)
    if sink is None:
        return contextlib.nullcontext()
    level = logging.getLevelNamesMapping()[log.level]
    session = LogSession([Destination(sink, level, lambda: sink)])
    _OPEN.add(session)
    return session


def log_folder() -> Path:
    """Return the folder that a server logs to, under $SERVING_LOG_PATH or the working folder."""
    return Path(os.environ.get("SERVING_LOG_PATH") or ".") / FOLDER


class LogSession:
    """The log while one server needs it. `close` may be called more than once."""

    def __init__(self, destinations: Sequence[Destination]) -> None:
        self.destinations: dict[object, Destination] = {
            destination.key: destination for destination in destinations
        }

    def close(self) -> None:
        """Write all records; the last session of a folder closes its files."""
        _OPEN.remove(self)

    def __enter__(self) -> LogSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OpenSessions:
    """The sessions of this process and their writers, one for each destination.

    The lock is held while files are opened and closed: a folder never has two writers, also when
    one server starts while another one stops. A forked process has none of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: list[LogSession] = []
        self._writers: dict[object, LogWriter] = {}
        self._before = (logging.NOTSET, True)  # the logger's level and propagate
        self._root = RootLines()
        self.switches: LogSwitches = LogSwitches()

    def switch(self, switches: LogSwitches) -> None:
        """Change the kinds of records that are written."""
        with self._lock:
            self.switches = switches
            if self._sessions:
                self._apply()

    def add(self, session: LogSession) -> None:
        with self._lock:
            for destination in session.destinations.values():
                if destination.key in self._writers:
                    continue
                writer = LogWriter(destination.make())
                writer.handler.addFilter(lambda record: self.switches.lets(record))
                if destination.wants is not None:
                    writer.handler.addFilter(destination.wants)
                writer.start()
                self._writers[destination.key] = writer
                _LOGGER.addHandler(writer.handler)
            if not self._sessions:
                self._before = (_LOGGER.level, _LOGGER.propagate)
            self._sessions.append(session)
            self._apply()

    def remove(self, session: LogSession) -> None:
        with self._lock:
            if session not in self._sessions:
                return
            self._sessions.remove(session)
            for key in session.destinations:
                if not any(key in other.destinations for other in self._sessions):
                    writer = self._writers.pop(key)
                    _LOGGER.removeHandler(writer.handler)
                    writer.close()
            if not self._sessions:  # the next server begins with its configuration
                self.switches = LogSwitches()
            self._apply()

    def forget(self) -> None:
        """Reset in a forked child, which has neither the writers nor the thread with the lock."""
        self._lock = threading.Lock()
        for handler in list(_LOGGER.handlers):
            if isinstance(handler, QueueingHandler):  # also one whose writer is being closed
                _LOGGER.removeHandler(handler)
        sessions, self._sessions = self._sessions, []
        writers, self._writers = self._writers, {}
        if sessions:
            self._apply()
        for writer in writers.values():
            writer.sink.abandon()

    def _apply(self) -> None:
        """Set the levels that the open sessions need, or restore the earlier ones."""
        level, propagate = self._before
        if self._sessions:
            wanted = min(
                destination.level
                for session in self._sessions
                for destination in session.destinations.values()
            )
            # If the user set a lower level on the logger, a handler needs it.
            wanted = self.switches.least(wanted)
            level = min(level, wanted) if level != logging.NOTSET else wanted
            propagate = False  # our lines go to our files, not also to the user's console
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagate
        if self._sessions:
            self._root.take(level)
        else:
            self._root.leave()
        for key, writer in self._writers.items():
            wanting = (session.destinations.get(key) for session in self._sessions)
            lowest = min(destination.level for destination in wanting if destination is not None)
            writer.handler.setLevel(self.switches.least(lowest))


_OPEN = _OpenSessions()
os.register_at_fork(after_in_child=_OPEN.forget)


def log_switches() -> LogSwitches:
    """Return which kinds of records are written now."""
    return _OPEN.switches


def switch_logs(switches: LogSwitches) -> None:
    """Change the kinds of records that are written, until the last session is closed."""
    _OPEN.switch(switches)


class RequestLog:
    """The log lines of single requests. Used only on the event loop.

    The logger's level is looked up once: make this after `open_logs`. Every `sample`-th success is
    logged at INFO (0: none), the others at DEBUG. Failures beyond `failures_per_s` in a second are
    only counted.
    """

    def __init__(
        self,
        logger: logging.Logger,
        sample: int = 0,
        failures_per_s: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._sample = sample if logger.isEnabledFor(logging.INFO) else 0
        # A success is looked at if the stride divides its data_id: with 0, none is.
        self._stride = 1 if logger.isEnabledFor(logging.DEBUG) else self._sample
        self._failures_per_s = failures_per_s
        self._second_end = float("-inf")
        self._failures: Counter[int] = Counter()  # by level

    @property
    def wants_successes(self) -> bool:
        """Return whether `succeeded` may have something to write."""
        return bool(self._stride)

    def succeeded(self, data_id: int, log_id: int, trace: str = "") -> None:
        """Log that a request was answered; `trace` is its own `traceparent`."""
        if not self._stride or data_id % self._stride:
            return
        level = logging.DEBUG
        if self._sample and data_id % self._sample == 0:
            level = logging.INFO
        text = "(data_id=%s log_id=%s) Succ predict"
        about = {RUNNING: Running("", "", (data_id,), log_id, trace)}
        self._logger.log(level, text, data_id, log_id, extra=about, stacklevel=2)

    def failed(
        self,
        data_id: int,
        log_id: int,
        error: object,
        level: int = logging.ERROR,
        trace: str = "",
    ) -> None:
        """Log that a request ended in `error`, an exception or a text; `trace` as above.

        An exception of the user's own code was logged where it was raised, with its traceback.
        """
        now = self._clock()
        if now >= self._second_end:
            self.flush()
            self._second_end = now + 1.0
        self._failures[level] += 1
        if self._failures[level] > self._failures_per_s:
            return
        shown = str(error) or type(error).__name__
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "..."
        args = (data_id, log_id, printable(shown))
        about = Running(getattr(error, "op", None) or "", "", (data_id,), log_id, trace)
        extra = {RUNNING: about, **(TOLD if getattr(error, "was_logged", False) else {})}
        text = "(data_id=%s log_id=%s) Failed to predict: %s"
        self._logger.log(level, text, *args, extra=extra, stacklevel=2)

    def flush(self) -> None:
        """Log how many failures were not written out; also called when the server stops."""
        failures, self._failures = self._failures, Counter()
        for level, count in failures.items():
            if count > self._failures_per_s:
                text = "%d more requests failed within a second: not logged singly"
                self._logger.log(level, text, count - self._failures_per_s)
