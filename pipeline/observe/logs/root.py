"""Lines of the root logger in the log of a server, which the predecessor's scripts expect there."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("pipeline")
_ROOT = logging.getLogger()


class RootLines:
    """The lines of the root logger, and of those below it, in the log of `pipeline`.

    That logger does not propagate meanwhile, or they would go round.
    """

    is_wanted = False

    def __init__(self) -> None:
        self._handler = _ToPipeline()
        self._level_before: int | None = None

    def take(self, level: int) -> None:
        """Take lines from `level` on, if somebody wants them."""
        if not self.is_wanted:
            return
        if self._level_before is None:
            self._level_before = _ROOT.level
            _ROOT.addHandler(self._handler)
        _ROOT.setLevel(min(self._level_before or level, level))

    def leave(self) -> None:
        """Leave them where they were before."""
        if self._level_before is not None:
            _ROOT.removeHandler(self._handler)
            _ROOT.setLevel(self._level_before)
            self._level_before = None


def log_as_the_predecessor() -> None:
    """Have servers log the lines of all loggers from now on: its scripts use the root logger."""
    RootLines.is_wanted = True


class _ToPipeline(logging.Handler):
    """Hands records on to the logger `pipeline`, as what they are."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Hand a record on, under no lock: the other logger's handlers have locks of their own."""
        _LOGGER.handle(record)
        return True
