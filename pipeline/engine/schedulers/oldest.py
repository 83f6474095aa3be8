"""The strategy `oldest`: batches of the requests that have waited longest, one a sequence."""

from __future__ import annotations

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Load
from pipeline.engine.schedulers.sequence_scheduler import SequenceScheduler
from pipeline.engine.schedulers.sequences import LiveSequence


class OldestScheduler(SequenceScheduler):
    """Fills batches up to `batch_size` out of the candidates of a worker.

    With a delay, a batch that is not full waits so long at most; one of a preferred size goes.
    """

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        super().__init__(config, op_name, slots)
        self._preferred = sorted(config.sequence.preferred_batch_sizes)

    def _cut(
        self, waiting: list[LiveSequence], load: Load, now: float
    ) -> list[LiveSequence] | float:
        count = min(len(waiting), self._batch_size)
        if count < min(self._batch_size, self._slots) and not load.is_full:
            fitting = [size for size in self._preferred if size <= count]
            due = waiting[0].queue[0].ready_at + self._delay_s
            if fitting:
                count = fitting[-1]
            elif now < due:
                return due
        return waiting[:count]
