"""When to cut a batch: pure functions of what is ready, what is measured and the time."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WEIGHT = 1 / 16  # of the newest sample in the running means
_LONGEST_GAP_S = 1.0  # an idle hour must not hide the rush after it
_HEADROOM = 1.25  # the adaptive target may grow by a quarter from one batch to the next
_AHEAD_S = 0.001  # work to queue at a busy worker, so that it never waits for the loop
_MOST_AHEAD = 32


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How an Op's batches are cut.

    Without a timeout nobody waits: an idle worker takes what is ready. With one, the first
    request of a batch waits for company that long at most: for a full batch, or with
    `adaptive` for the batch that keeps up with the arrivals.
    """

    batch_size: int
    timeout_s: float | None = None
    adaptive: bool = False

    def target(self, load: Load, workers: int) -> int:
        """The batch that is worth waiting for.

        By Little's law `service time x arrival rate` requests arrive while a batch runs.
        """
        if not self.adaptive:
            return self.batch_size
        arrivals = load.service_s / (load.gap_s * workers) if load.gap_s else self.batch_size
        wanted = math.ceil(min(arrivals, self.batch_size) * _HEADROOM)
        return max(1, min(self.batch_size, wanted))

    def due(self, first_ready_at: float) -> float:
        """When a batch leaves at the latest whose first request became ready then."""
        return first_ready_at + (self.timeout_s or 0.0)

    def ready_to_cut(self, ready: int, target: int, first_ready_at: float, now: float) -> bool:
        """Whether an idle worker should take what is ready now."""
        return ready >= target or now >= self.due(first_ready_at)


class Load:
    """Running means of what an Op sees: gap between arrivals and time a batch takes, in s."""

    __slots__ = ("_last_arrival", "gap_s", "service_s")

    def __init__(self) -> None:
        self._last_arrival: float | None = None
        self.gap_s: float = 0.0
        self.service_s: float = 0.0

    def arrived(self, now: float) -> None:
        if self._last_arrival is not None:
            gap = min(now - self._last_arrival, _LONGEST_GAP_S)
            self.gap_s += (gap - self.gap_s) * _WEIGHT if self.gap_s else gap
        self._last_arrival = now

    def served(self, seconds: float) -> None:
        self.service_s += (seconds - self.service_s) * _WEIGHT if self.service_s else seconds


def batches_ahead(service_s: float, batch_size: int, workers: int) -> int:
    """How many full batches may be queued at busy workers.

    About a millisecond's worth, which hides the way to the loop and back for quick Ops; a slow
    Op gets one a worker, and only where batches are merged: where each request is a batch of
    its own the oldest one still goes first.
    """
    if service_s <= 0:
        return 0
    floor = workers if batch_size > 1 else 0
    return max(floor, min(_MOST_AHEAD, int(_AHEAD_S / service_s)))
