"""Log records of worker processes: sent by the child, logged by the parent as its own.

A log file has one writer, in the parent. The child keeps no handler of the parent: its records
under `pipeline` go to `send`, and the parent's `replay` logs them with the same logger. The root
logger and the user's loggers stay unchanged, except for `RootLines`: they work in the child by
themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from pipeline.errors import utf8_text
from pipeline.observe.logs.lines import RUNNING, LineFormatter, exception_text, running_of
from pipeline.tracing.running import Running

_LOGGER = logging.getLogger("pipeline")


class SentRecord(msgspec.Struct, frozen=True, array_like=True):
    """A log record for transport. All text is valid UTF-8, as msgpack requires.

    `message` has its arguments filled in, `trace` and `stack` are text ("" for none), `created` is
    in seconds since the epoch; `about` is its subject. Other attributes from `extra=` are left out.
    """

    name: str
    level: int
    path: str
    line: int
    function: str
    message: str
    trace: str
    stack: str
    created: float
    pid: int
    thread: str
    about: Running = Running()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SentRecord).decode

Send = Callable[[SentRecord], None]
"""Takes a record home. It is called in whichever thread logs, and must not log itself."""


def keep_logs(level: int, send: Send) -> None:
    """Pass every record of the `pipeline` loggers from `level` on only to `send`.

    For worker processes. An OSError of `send` means that the parent accepts no more, for example
    while a worker ends: the record goes to stderr, which they share.
    """
    handler = _SendingHandler(send)
    for logger in _loggers():
        handler.detached += logger.handlers
        logger.handlers = []
        logger.propagate = logger is not _LOGGER
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(level)
    RootLines().take(level)


@dataclass(frozen=True, slots=True)
class LogsHome:
    """Called in a child: `keep_logs` with records as bytes. Picklable."""

    level: str  # lowest level of the parent's files

    def __call__(self, send: Callable[[bytes], None]) -> None:
        threshold = logging.getLevelNamesMapping()[self.level]
        # If the user set a lower level, a handler in the parent needs these records.
        level = min(_LOGGER.level or threshold, threshold)
        keep_logs(level, lambda record: send(_encode(record)))


def replay_bytes(data: bytes, trace_of: Callable[[int], str] | None = None) -> None:
    """Replay, in the parent, the records of a child's LogsHome.

    `trace_of` returns the `traceparent` of a data id, which the child may not know.
    """
    sent = _decode(data)
    about = sent.about
    if trace_of is not None and about.data_ids and not about.traceparent:
        about = about._replace(traceparent=trace_of(about.data_ids[0]))
        sent = msgspec.structs.replace(sent, about=about)
    replay(sent)


def replay(sent: SentRecord) -> None:
    """Log, in the parent, a child's record with its place, time, thread and pid.

    Records of the user's loggers, taken at the root logger, go only to the log: the child has
    already passed them to the user's handlers.
    """
    logger = logging.getLogger(sent.name)
    if not logger.isEnabledFor(sent.level):
        return
    place, stack = (sent.name, sent.level, sent.path, sent.line), sent.stack or None
    record = logger.makeRecord(*place, sent.message, (), None, sent.function, sinfo=stack)
    record.relativeCreated += (sent.created - record.created) * 1000
    record.created = sent.created
    record.msecs = sent.created % 1 * 1000 // 1
    record.process, record.threadName = sent.pid, sent.thread
    setattr(record, RUNNING, sent.about if any(sent.about) else None)
    record.exc_text = sent.trace or None  # formatters write it under the line
    is_ours = logger is _LOGGER or sent.name.startswith(f"{_LOGGER.name}.")
    (logger if is_ours else _LOGGER).handle(record)


class _SendingHandler(logging.Handler):
    """Sends records to the parent.

    `detached` are the earlier handlers. They are kept, because closing a file here would write
    again what the parent had in its buffer at the fork.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self.detached: list[logging.Handler] = []
        self._send = send
        self._pid = os.getpid()
        self._is_sending = False

    def emit(self, record: logging.LogRecord) -> None:
        """Send it; called under the handler's lock."""
        if os.getpid() != self._pid:
            # In a process that user code forked: `send` belongs to its parent.
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        if self._is_sending:
            return  # logged by a finaliser inside `send`: it must not send within a frame
        self._is_sending = True
        try:
            self._send(_sent(record))
        except OSError:
            _say_here(record)
        except Exception:  # the arguments' __str__ raised: user code
            self.handleError(record)
        finally:
            self._is_sending = False


def _say_here(record: logging.LogRecord) -> None:
    """Write a record to stderr, which may be closed with the parent."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{LineFormatter().format(record)}\n")
        sys.stderr.flush()


def _loggers() -> Iterator[logging.Logger]:
    """Yield those under `pipeline` that exist, itself included."""
    yield _LOGGER
    for name, logger in list(_LOGGER.manager.loggerDict.items()):
        if name.startswith("pipeline.") and isinstance(logger, logging.Logger):
            yield logger


def _sent(record: logging.LogRecord) -> SentRecord:
    about = running_of(record) or Running()
    return SentRecord(
        name=utf8_text(record.name),
        level=record.levelno,
        path=utf8_text(record.pathname),
        line=record.lineno,
        function=utf8_text(record.funcName or ""),
        message=utf8_text(record.getMessage()),
        trace=utf8_text(exception_text(record)),
        stack=utf8_text(record.stack_info or ""),
        created=record.created,
        pid=record.process or os.getpid(),
        thread=utf8_text(record.threadName or ""),
        about=about._replace(op=utf8_text(about.op)),
    )


_ROOT = logging.getLogger()


class RootLines:
    """Copies lines of the root logger and its children to the `pipeline` log, for Paddle's scripts.

    The `pipeline` logger does not propagate meanwhile: the lines would loop.
    """

    is_wanted = False

    def __init__(self) -> None:
        self._handler = _ToPipeline()
        self._level_before: int | None = None

    def take(self, level: int) -> None:
        """Add lines from `level` on, if they are wanted."""
        if not self.is_wanted:
            return
        if self._level_before is None:
            self._level_before = _ROOT.level
            _ROOT.addHandler(self._handler)
        _ROOT.setLevel(min(self._level_before or level, level))

    def leave(self) -> None:
        """Restore the root logger."""
        if self._level_before is not None:
            _ROOT.removeHandler(self._handler)
            _ROOT.setLevel(self._level_before)
            self._level_before = None


def log_as_the_predecessor() -> None:
    """Have servers log the lines of all loggers: Paddle's scripts use the root logger."""
    RootLines.is_wanted = True


class _ToPipeline(logging.Handler):
    """Passes records to the logger `pipeline`."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Pass a record on, without a lock: the other logger's handlers have their own locks."""
        _LOGGER.handle(record)
        return True
