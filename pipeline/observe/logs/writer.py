"""The one thread that writes the records of a sink.

Logging never waits for a disk: a record goes into a bounded queue, from any thread and from the
event loop.
"""

from __future__ import annotations

import copy
import logging.handlers
import queue
import threading

from pipeline.observe.logs.lines import RUNNING, running_of
from pipeline.observe.logs.sinks import LogSink, own_record

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
        """Open the sink and begin to write; InitError says why that cannot be."""
        self.sink.open()
        self._thread.start()

    def close(self) -> None:
        """Write what waits, stop the thread, close the sink."""
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
        finally:
            self.sink.close()


class QueueingHandler(logging.handlers.QueueHandler):
    """Puts records into a queue that it bounds itself, and counts those it drops."""

    def __init__(self, records: _Queue, limit: int) -> None:
        super().__init__(records)
        self._records = records
        self._limit = limit
        self.dropped: int = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Queue it, or count it; called under the handler's lock."""
        waiting = self._records.qsize()
        if waiting >= self._limit and (
            record.levelno < logging.WARNING or waiting >= 2 * self._limit
        ):
            self.dropped += 1
        else:
            super().emit(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Copy it with its text made now: the arguments may change before it is written.

        A traceback is left to the writer, since formatting one reads source files.
        """
        frozen = copy.copy(record)
        frozen.msg, frozen.args = record.getMessage(), None
        setattr(frozen, RUNNING, running_of(record))  # known in this thread only
        return frozen

    def take_dropped(self) -> int:
        """Return how many were dropped since the last call."""
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped
