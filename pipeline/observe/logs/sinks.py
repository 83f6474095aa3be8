"""Sinks of log records, files and stdout, and the thread that writes to each.

Logging never waits for a disk: records go into a bounded queue, from any thread and from the event
loop.
"""

from __future__ import annotations

import copy
import logging
import logging.handlers
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import InitError
from pipeline.observe.logs.lines import RUNNING, JsonFormatter, LineFormatter, running_of
from pipeline.system.stdio import say_on_stderr, write_out

_LOGGER = logging.getLogger("pipeline")
_COMPLAINT_S = 60.0  # between two complaints about a full disk
_ABANDONED: list[object] = []  # files of the parent of this forked process


class LogSink:
    """Takes the records of one writer, in its thread."""

    def open(self) -> None:
        """Prepare for writing. Raises InitError."""

    def write(self, record: logging.LogRecord) -> None:
        """Write a record; raises nothing."""
        raise NotImplementedError

    def rest(self) -> float | None:
        """Do what is due; return the seconds until the next call at the latest, None: never."""
        return None

    def close(self) -> None:
        """Write the rest."""

    def abandon(self) -> None:
        """Release the parent's resources, in a forked child."""


class FileSink(LogSink):
    """`pipeline.log` and, from WARNING on, `pipeline.log.wf` of one folder.

    The former keeps `backup_count` rotated files, the latter half as many. Files are never rotated
    when `max_bytes` or `backup_count` is 0. `is_json`: lines are JSON objects.
    """

    def __init__(
        self, directory: Path, max_bytes: int, backup_count: int, is_json: bool = False
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._backup_count = backup_count
        self._is_json = is_json
        self._targets: list[_RotatingFile] = []
        self._complaint = Complaint(f"logs to {directory}")

    def open(self) -> None:
        directory, count = self._directory, self._backup_count
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # The handler has the session's level: everything in the queue is written.
            self._open("pipeline.log", logging.NOTSET, count)
            self._open("pipeline.log.wf", logging.WARNING, (count + 1) // 2)
        except OSError as error:
            self.close()
            raise InitError(
                f"cannot write logs to {directory}: {error.strerror or error}: "
                "set SERVING_LOG_PATH to a folder that can be written, or log.to: stdout"
            ) from error

    def write(self, record: logging.LogRecord) -> None:
        for target in self._targets:
            if record.levelno >= target.level:
                target.handle(record)

    def close(self) -> None:
        for target in self._targets:
            target.close()
        self._targets.clear()

    def abandon(self) -> None:
        """Release the files without closing them.

        A buffer may hold a partial line, or a lock of a thread that is not here: closing would
        write the line twice, or wait forever.
        """
        with open(os.devnull, "wb") as null:
            for target in self._targets:
                stream, target.stream = target.stream, None
                if stream is not None and not stream.closed:
                    _ABANDONED.append(stream)
                    os.dup2(null.fileno(), stream.fileno(), inheritable=False)

    def _open(self, name: str, level: int, backup_count: int) -> None:
        target = _RotatingFile(
            self._directory / name,
            maxBytes=self._max_bytes if backup_count else 0,
            backupCount=backup_count,
            encoding="utf-8",
            errors="backslashreplace",  # a line with a lone surrogate is better than no line
        )
        target.complaint = self._complaint
        target.setLevel(level)
        target.setFormatter(JsonFormatter() if self._is_json else LineFormatter())
        self._targets.append(target)


class _RotatingFile(logging.handlers.RotatingFileHandler):
    """A file that counts the records that it could not write, and reports them later."""

    complaint: Complaint
    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        before = self.lost
        super().emit(record)
        if before and self.lost == before:
            self.lost = 0
            super().emit(own_record("%d log records could not be written here", before))

    def handleError(self, record: logging.LogRecord) -> None:
        self.lost += 1
        self.complaint.about(sys.exc_info()[1])

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:  # the buffer is lost; the file is closed
            self.complaint.about(error)


class StdoutSink(LogSink):
    """Standard output, for containers."""

    def __init__(self, is_json: bool) -> None:
        self._formatter = JsonFormatter() if is_json else LineFormatter()
        self._complaint = Complaint("logs to stdout")

    def write(self, record: logging.LogRecord) -> None:
        try:
            if sys.stdout is not None:
                write_out(sys.stdout, f"{self._formatter.format(record)}\n")
        except Exception as error:  # also for text that cannot be encoded, and for a user's stream
            self._complaint.about(error)


class Complaint:
    """Reports on stderr that records are lost, once a minute: a disk may be full for days."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._silent_until = float("-inf")

    def about(self, error: BaseException | None) -> None:
        """Report that a record could not be written."""
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _COMPLAINT_S
            why = error.strerror if isinstance(error, OSError) else error
            say_on_stderr(f"pipeline: cannot write {self._what}: {why or error}: lines are lost")


def own_record(text: str, *args: object) -> logging.LogRecord:
    """Return a warning about the log itself."""
    return _LOGGER.makeRecord(_LOGGER.name, logging.WARNING, __file__, 0, text, args, None)


_QUEUE_LIMIT = 10_000  # records that wait for the disk
_JOIN_TIMEOUT_S = 10.0  # a disk that hangs must not keep a server from stopping

_Queue = queue.SimpleQueue[logging.LogRecord | None]


class LogWriter:
    """A sink and the one thread that writes to it.

    `handler` takes records from any thread and never blocks: when `limit` of them wait, those
    under WARNING are dropped, at twice as many all are. The number dropped is logged as soon
    as half of `limit` is free again.
    """

    def __init__(self, sink: LogSink, limit: int = _QUEUE_LIMIT) -> None:
        self.sink: LogSink = sink
        self._limit = limit
        self._queue: _Queue = queue.SimpleQueue()
        self.handler: QueueingHandler = QueueingHandler(self._queue, limit)
        self._thread = threading.Thread(target=self._run, name="pipeline-log", daemon=True)

    def start(self) -> None:
        """Open the sink and begin to write. Raises InitError."""
        self.sink.open()
        self._thread.start()

    def close(self) -> None:
        """Write the queue, stop the thread, close the sink."""
        self.handler.close()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while True:
                try:
                    record = self._queue.get(timeout=self.sink.rest())
                except queue.Empty:
                    continue
                if record is None:
                    break
                self.sink.write(record)
                if self.handler.dropped and self._queue.qsize() <= self._limit // 2:
                    dropped = self.handler.take_dropped()
                    text = "%d log records were dropped: they came faster than they are written"
                    self.sink.write(own_record(text, dropped))
                del record  # its traceback refers to the data of a request
        finally:
            self.sink.close()


class QueueingHandler(logging.handlers.QueueHandler):
    """Puts records into a bounded queue, and counts the dropped ones."""

    def __init__(self, records: _Queue, limit: int) -> None:
        super().__init__(records)
        self._records = records
        self._limit = limit
        self.dropped: int = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it; called under the handler's lock."""
        waiting = self._records.qsize()
        if waiting >= self._limit and (
            record.levelno < logging.WARNING or waiting >= 2 * self._limit
        ):
            self.dropped += 1
        else:
            super().emit(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy with its text made now: the arguments may change before it is written.

        The writer formats the traceback, because that reads source files.
        """
        frozen = copy.copy(record)
        frozen.msg, frozen.args = record.getMessage(), None
        setattr(frozen, RUNNING, running_of(record))  # known only in this thread
        return frozen

    def take_dropped(self) -> int:
        """Return the number of dropped records since the last call."""
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped
