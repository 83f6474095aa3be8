"""The scheduler `dynamic` as its callers see it: requests by number, a clock that is a number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from pipeline.config.batching import DynamicBatchingConfig
from pipeline.config.schema import OpConfig
from pipeline.data import RequestInfo
from pipeline.engine.op.channel import Item
from pipeline.engine.schedulers.base import Batch, Load, Refusal
from pipeline.engine.schedulers.dynamic_batcher import DynamicBatcher


class _FakeRequest(SimpleNamespace):
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Queueing:
    """A batcher and its instances, each of which is `run_s` busy with a batch.

    `batches` has (time, sizes in samples of the requests, their numbers) of the batches that
    began, in order; `refused` has the texts and times of the refused requests, by number.
    """

    def __init__(
        self,
        batch_size: int = 8,
        instances: int = 1,
        run_s: float = 0.0,
        **batching: Any,
    ) -> None:
        section = msgspec.convert(batching, DynamicBatchingConfig)
        config = OpConfig(batch_size=batch_size, batching="dynamic", dynamic_batching=section)
        self.scheduler = DynamicBatcher(config)
        self.load = Load(workers=instances)
        self.run_s = run_s
        self.now = 0.0
        self.count = 0
        self.items: dict[int, Item] = {}
        self.batches: list[tuple[float, list[int], list[int]]] = []
        self.refused: dict[int, tuple[str, float]] = {}
        self._running: list[tuple[float, Batch]] = []

    def ask(
        self, rows: int = 1, priority: int = 0, timeout: int = 0, shape: int = 16, id: str = ""
    ) -> int:
        """Send a request, `timeout` in us; return its number."""
        self.count += 1
        parameters = {"timeout": timeout} if timeout else {}
        info = RequestInfo(id=id, priority=priority, parameters=parameters)
        asked = _FakeRequest(data_id=self.count, log_id=0, generation=0, rows=rows, info=info)
        item = Item(asked, 0, self.count, 0, {"x": shape}, self.now)  # type: ignore[arg-type]
        self.scheduler.add(item, self.now)
        self.items[self.count] = item
        self.cut()
        return self.count

    def cut(self) -> float | None:
        """Hand out what may go; return when to look again."""
        while True:
            found = self.scheduler.next(self.load, self.now)
            if isinstance(found, Refusal):
                for item in found.items:
                    self.refused[item.data_id] = str(found.error), self.now
            elif isinstance(found, Batch):
                self._begin(found)
            else:
                return found

    def at(self, time: float) -> Queueing:
        """Advance the clock to `time`, and do what is due until then."""
        while True:
            wake = self.cut()
            ends = [end for end, _ in self._running]
            due = min([each for each in (wake, *ends) if each is not None], default=None)
            if due is None or due > time:
                break
            assert due >= self.now, "it is asked again for what is over"
            self.now = due
            for entry in [entry for entry in self._running if entry[0] <= due]:
                self._running.remove(entry)
                self.load.running -= 1
                self.scheduler.done(entry[1], due)
        self.now = time
        self.cut()
        return self

    @property
    def sizes(self) -> list[tuple[float, int]]:
        """Return (time, size in samples) of each batch."""
        return [(time, sum(rows)) for time, rows, _ in self.batches]

    @property
    def order(self) -> list[list[int]]:
        """Return the numbers of the requests in each batch."""
        return [numbers for _, _, numbers in self.batches]

    def _begin(self, batch: Batch) -> None:
        rows = [item.request.rows for item in batch.items]
        self.batches.append((self.now, rows, [item.data_id for item in batch.items]))
        if self.run_s:
            self.load.running += 1
            self._running.append((self.now + self.run_s, batch))
        else:
            self.scheduler.done(batch, self.now)
