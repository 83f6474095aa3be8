"""State that `preprocess` of one request leaves on an Op, kept for its `postprocess` to read."""

from __future__ import annotations

from operator import is_
from typing import Any

_UNSET = object()


def is_as_before(state: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether an Op has the same attributes with the same values, none set again."""
    return (
        len(state) == len(before)
        and all(map(is_, state.values(), before.values()))
        and all(map(is_, state, before))
    )


def keep_changes(
    before: dict[str, Any], states: dict[int, dict[str, Any]], after: dict[str, Any]
) -> None:
    """Leave of each state, in place, the attributes that any item has changed.

    Also those that an item found as it wanted them: another one may have changed them since, be
    it one that failed then.
    """
    changed = set()
    for state in (*states.values(), after):
        changed |= {name for name, value in state.items() if before.get(name, _UNSET) is not value}
        before = state
    for index, state in states.items():
        states[index] = {name: state.get(name, _UNSET) for name in changed}


def restore(state: dict[str, Any], kept: dict[str, Any]) -> None:
    """Set the attributes as they were; those that were not there are not there again."""
    for name, value in kept.items():
        if value is _UNSET:
            state.pop(name, None)
        else:
            state[name] = value
