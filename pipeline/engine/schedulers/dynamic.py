"""The schedulers `full` and `adaptive`: batches of the ready items, oldest request first."""

from __future__ import annotations

import math
from typing import ClassVar

from pipeline.config.batching import SchedulerTraits
from pipeline.config.schema import OpConfig
from pipeline.engine.op.channel import Item
from pipeline.engine.schedulers.base import Batch, Load, ReadyQueue

_WEIGHT = 1 / 16  # of the newest gap in the running mean
_MAX_GAP_S = 1.0  # a long idle time must not hide the rush after it
_HEADROOM = 1.25  # the adaptive target may grow by a quarter from one batch to the next
_AHEAD_S = 0.001  # work to queue at a busy worker, so that it need not wait for the loop
_MAX_AHEAD = 32


class FullScheduler(ReadyQueue):
    """Fills batches up to `batch_size` requests, and to the samples that an execution takes.

    Without a timeout no request waits: an idle worker takes what is ready. With a timeout, the
    first request of a batch waits at most that long for a full batch.
    """

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(lets_pass=True, shares_messages=True)

    def __init__(self, config: OpConfig, options: None = None) -> None:
        super().__init__()
        self._batch_size = config.batch_size
        self._timeout_s = config.auto_batching_timeout_s

    def next(self, load: Load, now: float) -> Batch | float | None:
        ready, size = len(self._ready) + len(self._late), self._batch_size
        if not ready or load.max_items <= 0:
            return None
        is_whole = ready >= size or 0 < load.max_rows <= self.rows
        if load.running >= load.workers and not (is_whole and self._may_queue_ahead(load)):
            return None
        if not is_whole and self._timeout_s is not None and not load.is_full:
            due = self.first_ready_at() + self._timeout_s
            if now < due and ready < self.target(load):
                return due
        if ready == 1 and self._ready:  # the common case
            return Batch([self._ready.pop()[2]])
        return Batch(self.take(min(size, load.max_items), load, now))

    def done(self, batch: Batch, now: float) -> None:
        """Do nothing: this scheduler keeps no state of a batch."""

    def target(self, load: Load) -> int:
        """Return the batch size that is worth waiting for."""
        return self._batch_size

    def _may_queue_ahead(self, load: Load) -> bool:
        ahead = batches_ahead(load, self._batch_size)
        return load.workers > 0 and load.running < load.workers + ahead


class AdaptiveScheduler(FullScheduler):
    """Waits only for the batch size that keeps up with the arrivals."""

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(lets_pass=True)

    def __init__(self, config: OpConfig, options: None = None) -> None:
        super().__init__(config)
        self._arrived_at: float | None = None
        self.gap_s: float = 0.0  # running mean between arrivals

    def add(self, item: Item, now: float) -> None:
        super().add(item, now)
        if self._arrived_at is not None:
            gap = min(now - self._arrived_at, _MAX_GAP_S)
            self.gap_s += (gap - self.gap_s) * _WEIGHT if self.gap_s else gap
        self._arrived_at = now

    def target(self, load: Load) -> int:
        """Return the batch size that is worth waiting for.

        By Little's law, `service time x arrival rate` requests arrive while a batch runs.
        """
        size, workers = self._batch_size, max(1, load.workers)
        arrivals = load.service_s / (self.gap_s * workers) if self.gap_s else size
        return max(1, min(size, math.ceil(min(arrivals, size) * _HEADROOM)))


def batches_ahead(load: Load, batch_size: int) -> int:
    """Return how many full batches may be queued at busy workers.

    Batches for about a millisecond, which hides the way to the loop and back for quick Ops. A slow
    Op gets one for each worker, but only if batches are merged: if each request is a batch of its
    own, the oldest request should go first, unless the way to a worker is long.
    """
    service_s, workers = load.service_s, load.workers
    if service_s <= 0:
        return load.ahead * workers
    floor = workers * max(load.ahead, int(batch_size > 1))
    return max(floor, min(_MAX_AHEAD, int(_AHEAD_S / service_s)))
