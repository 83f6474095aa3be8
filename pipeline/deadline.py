"""The deadline of the running call of `process`, for the calls that it makes."""

from __future__ import annotations

import time
from contextvars import ContextVar

from pipeline.errors import DeadlineError

_call_deadline: ContextVar[float | None] = ContextVar("pipeline_call_deadline", default=None)


def call_deadline() -> float | None:
    """Return the `time.monotonic()` at which the running call has to end; None: no deadline."""
    return _call_deadline.get()


def set_call_deadline(deadline: float | None) -> None:
    """Set the deadline for this thread, and for coroutines that it starts."""
    _call_deadline.set(deadline)


def time_left(deadline_s: float | None, default_s: float) -> float:
    """Return the seconds that a call to another server has.

    `deadline_s` limits this call; if neither it nor the running call has a deadline, `default_s`
    counts.

    Raises DeadlineError: no time is left.
    """
    ends = _call_deadline.get()
    if ends is None:
        left = default_s if deadline_s is None else deadline_s
    else:
        left = ends - time.monotonic()
        if deadline_s is not None and deadline_s < left:
            left = deadline_s
    if left <= 0:
        raise DeadlineError("the deadline passed before the model's server was called")
    return left
