"""The deadline of the running call of `process`, for whatever it calls in turn."""

from __future__ import annotations

import time
from contextvars import ContextVar

from pipeline.errors import DeadlineError

_call_deadline: ContextVar[float | None] = ContextVar("pipeline_call_deadline", default=None)


def call_deadline() -> float | None:
    """Return the `time.monotonic()` at which the running call has to end; None: it need not."""
    return _call_deadline.get()


def set_call_deadline(deadline: float | None) -> None:
    """Set it for this thread, and for coroutines that it starts."""
    _call_deadline.set(deadline)


def time_left(deadline_s: float | None, default_s: float) -> float:
    """Return the seconds that a call to another server has.

    The caller gives it `deadline_s`, if it says so; where the running call has no deadline either
    it has `default_s`.

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
        raise DeadlineError("the deadline passed before the model's server was asked")
    return left
