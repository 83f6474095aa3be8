"""StateWatch: sees whether requests leave an Op's attributes other than they were."""

from __future__ import annotations

from collections import deque
from typing import Any

_SIZED = frozenset({list, dict, set, bytearray, deque})  # whose length is no user's code
_ALL = 64  # jobs behind each of which it looks, and the share of the later ones


class StateWatch:
    """A look at the attributes of one Op, in the process that runs it.

    An attribute has changed if it is another object, or a collection of another length. What
    happens deeper within, in globals or in files is not seen.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._jobs = 0
        self._seen = _marks(state)

    def has_changed(self) -> bool:
        """Look, behind a job; return whether the jobs so far have changed anything."""
        self._jobs += 1
        if self._jobs > _ALL and self._jobs % _ALL:
            return False
        marks = _marks(self._state)
        return len(marks) != len(self._seen) or any(
            name not in self._seen or _is_other(self._seen[name], mark)
            for name, mark in marks.items()
        )


_Mark = tuple[Any, int]
"""An attribute's value, and its length if it is a collection."""


def _marks(state: dict[str, Any]) -> dict[str, _Mark]:
    return {
        name: (value, len(value) if type(value) in _SIZED else -1)
        for name, value in list(state.items())  # threads of the user's may add to it
    }


def _is_other(before: _Mark, after: _Mark) -> bool:
    """Return whether an attribute has changed."""
    return before[0] is not after[0] or before[1] != after[1]
