"""Arrivals: what the book of an Op's sequences knows of requests that are on their way to it."""

from __future__ import annotations

from pipeline.errors import ClosedError, DeadlineError, PipelineError


class Arrivals:
    """Requests on their way to an Op with sequences: none. Base of what knows better."""

    def is_awaited(self, id: int | str) -> bool:
        """Return whether a request of a sequence is on its way: then it is not idle."""
        return False

    def ended(self, id: int | str, error: PipelineError) -> None:
        """Take note that a sequence ended before its end, and why."""


def how_it_left(error: PipelineError | None) -> str:
    """Return what became of a request that did not run, by the error of its caller."""
    if isinstance(error, DeadlineError):
        return "ran out of time"
    return "was cancelled" if isinstance(error, ClosedError) else "was lost on its way"
