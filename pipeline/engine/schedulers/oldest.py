"""The strategy `oldest`: batches of the requests that have waited longest, one a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Load
from pipeline.engine.schedulers.sequence_scheduler import SequenceScheduler
from pipeline.engine.schedulers.sequences import Ready


class OldestScheduler(SequenceScheduler):
    """Fills batches up to `batch_size` out of the candidates of a worker.

    With a delay, a batch that is not full waits so long at most; one of a preferred size goes.
    """

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        super().__init__(config, op_name, slots)
        self._preferred = sorted(config.sequence.preferred_batch_sizes)

    def _count(self, ready: Sequence[Ready], load: Load, now: float) -> int:
        count = min(len(ready), self._batch_size)
        if count < self._whole and not load.is_full:
            fitting = [size for size in self._preferred if size <= count]
            if not fitting and self._may_wait(ready, load, now):
                return 0
            count = fitting[-1] if fitting else count
        return count
