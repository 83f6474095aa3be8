"""The strategy `direct`: a sequence has a place of its own in every batch of its worker."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Load
from pipeline.engine.schedulers.held_start import HeldStart
from pipeline.engine.sequences.book import LiveSequence, Ready
from pipeline.engine.sequences.scheduler import SequenceScheduler


class DirectScheduler(SequenceScheduler):
    """Has a round at a worker take the next request of each of its slots, in their order.

    With a share of slots and a delay, a round waits for that share, or that long.
    """

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        super().__init__(config, op_name, slots)
        self._least = config.sequence.min_slot_utilization * slots

    def _count(self, ready: Sequence[Ready], load: Load, now: float) -> int:
        if len(ready) < self._least and self._may_wait(ready, load, now):
            return 0
        return len(ready)

    def _order(self, taken: list[LiveSequence]) -> list[LiveSequence]:
        return sorted(taken, key=lambda sequence: sequence.slot.number if sequence.slot else 0)

    def _is_held(self, start: HeldStart) -> bool:
        backlog = self.book.in_backlog
        return self.book.queued - backlog < start.queued or backlog < start.backlog
