"""Sequences as their scheduler sees them: requests by short words, a clock that is a number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipeline.config.schema import OpConfig, SequenceConfig
from pipeline.data import RequestInfo
from pipeline.engine.op.channel import Item
from pipeline.engine.schedulers.base import Batch, Load
from pipeline.engine.sequences.scheduler import DirectScheduler, OldestScheduler

STRATEGIES = {"direct": DirectScheduler, "oldest": OldestScheduler}


class FakeRequest(SimpleNamespace):
    """A request of a sequence."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Sequences:
    """A scheduler for some workers, asked in words: "7 start", "7", "7 end", "7 start end".

    `log` has (id, number of the request within all, worker, place) of each begun request.
    """

    def __init__(
        self, strategy: str = "direct", workers: int = 1, slots: int = 1, **options: Any
    ) -> None:
        sequence = SequenceConfig(strategy=strategy, **options)  # type: ignore[arg-type]
        config = OpConfig(batch_size=slots, concurrency=workers, sequence=sequence)
        slots = sequence.max_candidates or slots
        self.scheduler: Any = STRATEGIES[strategy](config, "m", slots)
        self.lives = dict.fromkeys(range(workers), 0)
        self.scheduler.workers_are(self.lives)
        self.load = Load(workers=workers)
        self.now = 0.0
        self.count = 0
        self.out: dict[int, Batch] = {}
        self.log: list[tuple[Any, int, int, int]] = []

    def ask(self, words: str, rows: int = 1, id: Any = None, timeout: int = 0) -> Any:
        """Send a request, with Triton's timeout in us; its Item, or what it is refused with."""
        name, *flags = words.split()
        info = RequestInfo(
            parameters={"timeout": timeout} if timeout else {},
            sequence_id=(int(name) if name.isdigit() else name) if id is None else id,
            sequence_start="start" in flags,
            sequence_end="end" in flags,
        )
        self.count += 1
        asked = FakeRequest(
            data_id=self.count, log_id=0, generation=0, rows=rows, info=info, error=None
        )
        asked.target = None
        item = Item(asked, 0, self.count, 0, {}, self.now)  # type: ignore[arg-type]
        refusal = self.scheduler.add(item, self.now)
        return item if refusal is None else str(refusal)

    def next(self) -> Any:
        """Return what begins now: (worker, {place: "id/number"}), a time, or None."""
        batch = self.scheduler.next(self.load, self.now)
        if not isinstance(batch, Batch):
            return batch
        assert batch.worker is not None
        assert batch.places is not None
        assert batch.worker not in self.out, "it has one"
        self.out[batch.worker] = batch
        for item, place in zip(batch.items, batch.places, strict=True):
            entry = item.request.info.sequence_id, item.data_id, batch.worker, place
            self.log.append(entry)
        pairs = zip(batch.places, batch.items, strict=True)
        names = {place: f"{i.request.info.sequence_id}/{i.data_id}" for place, i in pairs}
        return batch.worker, names

    def done(self, worker: int = 0) -> None:
        self.scheduler.done(self.out.pop(worker), self.now)

    def lose(self, worker: int) -> Batch | None:
        """Replace a worker; return the batch that it had."""
        batch = self.out.pop(worker, None)
        if batch is not None:
            self.scheduler.done(batch, self.now)
        self.lives[worker] += 1
        self.scheduler.workers_are(self.lives)
        return batch

    def refused(self) -> dict[int, str]:
        """By their numbers, the texts of requests that were refused afterwards; only once."""
        refused = list(self.scheduler.book.refused)
        self.scheduler.book.refused.clear()
        return {item.data_id: str(error) for item, error in refused}
