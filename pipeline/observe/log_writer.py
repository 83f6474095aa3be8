"""The log files of one folder, and the one thread that writes them.

Logging never waits for a disk: a record goes into a bounded queue, from any thread and from the
event loop.
"""

from __future__ import annotations

import copy
import logging
import logging.handlers
import os
import queue
import threading
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InitError
from pipeline.observe.records import LineFormatter

FORMAT = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"

_LOGGER = logging.getLogger("pipeline")
_QUEUE_LIMIT = 10_000  # records that wait for the disk
_JOIN_TIMEOUT_S = 10.0  # a disk that hangs must not keep a server from stopping
_ABANDONED: list[object] = []  # files of the process that this one was forked from


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Where to write, from which level on, and when a file is rotated.

    `pipeline.log` keeps `backup_count` rotated files, `pipeline.log.wf` half as many. Files are
    never rotated when `max_bytes` or `backup_count` is 0.
    """

    directory: Path
    level: int
    max_bytes: int
    backup_count: int


class LogWriter:
    """The files of one folder and the one thread that writes them.

    `handler` takes records from any thread and never blocks: when `limit` of them wait, those
    under WARNING are dropped, at twice as many all are. The number dropped is logged as soon
    as half of `limit` is free again.
    """

    def __init__(self, files: LogFiles, limit: int = _QUEUE_LIMIT) -> None:
        self._files = files
        self._limit = limit
        self._queue: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self.handler = QueueingHandler(self._queue, limit)
        self._targets: list[logging.FileHandler] = []
        self._thread = threading.Thread(target=self._run, name="pipeline-log", daemon=True)

    def start(self) -> None:
        """Open the files and begin to write.

        Raises:
            InitError: the folder or a file cannot be written.
        """
        directory, count = self._files.directory, self._files.backup_count
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # The session's level is the handler's: what is in the queue is to be written.
            self._open("pipeline.log", logging.NOTSET, count)
            self._open("pipeline.log.wf", logging.WARNING, (count + 1) // 2)
        except OSError as error:
            self._close_files()
            raise InitError(
                f"cannot write logs to {directory}: {error.strerror or error}: "
                "set SERVING_LOG_PATH to a folder that can be written"
            ) from error
        self.handler.setLevel(self._files.level)
        self._thread.start()

    def close(self) -> None:
        """Write what waits, stop the thread, close the files."""
        self.handler.close()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_JOIN_TIMEOUT_S)

    def abandon(self) -> None:
        """In a forked child: let go of the files, which are not deleted before, but close none.

        A buffer may hold half a line, or a lock of the thread, which is not here: closing would
        write that line twice, or wait for ever.
        """
        with open(os.devnull, "wb") as null:
            for target in self._targets:
                stream, target.stream = target.stream, None
                if stream is not None and not stream.closed:
                    _ABANDONED.append(stream)
                    os.dup2(null.fileno(), stream.fileno(), inheritable=False)

    def _open(self, name: str, level: int, backup_count: int) -> None:
        target = logging.handlers.RotatingFileHandler(
            self._files.directory / name,
            maxBytes=self._files.max_bytes if backup_count else 0,
            backupCount=backup_count,
            encoding="utf-8",
            errors="backslashreplace",  # a line with a lone surrogate is better than no line
        )
        target.setLevel(level)
        target.setFormatter(LineFormatter(FORMAT))
        self._targets.append(target)

    def _run(self) -> None:
        try:
            while (record := self._queue.get()) is not None:
                self._write(record)
                if self.handler.dropped and self._queue.qsize() <= self._limit // 2:
                    self._write(_dropped_record(self.handler.take_dropped()))
        finally:
            self._close_files()

    def _write(self, record: logging.LogRecord) -> None:
        for target in self._targets:
            if record.levelno >= target.level:
                target.handle(record)

    def _close_files(self) -> None:
        for target in self._targets:
            target.close()
        self._targets.clear()


class QueueingHandler(logging.Handler):
    """Puts records into a queue that it bounds itself, and counts those it drops."""

    def __init__(self, records: queue.SimpleQueue[logging.LogRecord | None], limit: int) -> None:
        super().__init__()
        self._queue = records
        self._limit = limit
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's lock."""
        waiting = self._queue.qsize()
        if waiting >= self._limit and (
            record.levelno < logging.WARNING or waiting >= 2 * self._limit
        ):
            self.dropped += 1
            return
        try:
            self._queue.put(_frozen(record))
        except Exception:  # the arguments' own __str__ raised: it is the user's code
            self.handleError(record)

    def take_dropped(self) -> int:
        """How many were dropped since the last call."""
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped


def _frozen(record: logging.LogRecord) -> logging.LogRecord:
    """A copy whose text is made now: the arguments may change before it is written.

    A traceback is left to the writer, since formatting one reads source files.
    """
    frozen = copy.copy(record)
    frozen.msg, frozen.args = record.getMessage(), None
    return frozen


def _dropped_record(count: int) -> logging.LogRecord:
    text = "%d log records were dropped: they came faster than the disk takes them"
    return _LOGGER.makeRecord(_LOGGER.name, logging.WARNING, __file__, 0, text, (count,), None)
