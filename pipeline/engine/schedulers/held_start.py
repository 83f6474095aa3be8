"""HeldStart: Triton's hooks for tests, by which a scheduler begins only when enough is there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SWITCH = "PIPELINE_TEST_HOOKS"
"""Environment variable that must be 1 for the others to be read."""

_QUEUED = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


class HeldStart(msgspec.Struct, frozen=True):
    """Requests that have to be there before the first batch of an Op with sequences.

    Attributes:
        queued: requests of sequences that have slots; with `oldest` one of each, at one worker.
        backlog: requests of those that have none; `oldest` does not look at them, as in Triton.
    """

    queued: int
    backlog: int = 0


def held_start(environment: Mapping[str, str]) -> HeldStart | None:
    """Return what the hooks ask for; None: nothing, or they are not switched on."""
    if environment.get(SWITCH) != "1":
        return None
    queued, backlog = (_count(environment.get(name, "")) for name in (_QUEUED, _BACKLOG))
    return HeldStart(queued, backlog) if queued else None


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0
