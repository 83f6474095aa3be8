"""The strategy `oldest`: batches of the requests that have waited longest, one a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Load
from pipeline.engine.schedulers.held_start import HeldStart
from pipeline.engine.sequences.book import Ready
from pipeline.engine.sequences.scheduler import SequenceScheduler


class OldestScheduler(SequenceScheduler):
    """Fills batches up to `batch_size` out of the candidates of a worker.

    Of what is there a preferred size goes at once. What has none waits for the delay at most, and
    then all goes.
    """

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        super().__init__(config, op_name, slots)
        self._preferred = sorted(config.sequence.preferred_batch_sizes)

    def _count(self, ready: Sequence[Ready], load: Load, now: float) -> int:
        count = min(len(ready), self._batch_size)
        is_due = now >= ready[0][0] + self._delay_s
        fitting = [size for size in self._preferred if size <= count]
        if fitting and not (is_due and self._delay_s):
            return fitting[-1]
        return count if is_due or load.is_full or count >= self._whole else 0

    def _is_held(self, start: HeldStart) -> bool:
        return all(len(ready) < start.queued for ready in self.book.ready.values())
