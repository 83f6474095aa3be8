"""LogSwitches: which kinds of records are written, while a server runs."""

from __future__ import annotations

import logging

import msgspec


class LogSwitches(msgspec.Struct, frozen=True):
    """Kinds of records that are written; `verbose` above 0: those for finding faults, too."""

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
        """Return the least severe level that is looked at, where `level` is configured."""
        return min(level, logging.DEBUG) if self.verbose > 0 else level
