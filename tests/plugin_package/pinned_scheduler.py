"""A scheduler of a plug-in: one worker runs all, however many there are, one request at a time.

The entry point of the group `pipeline.schedulers` names Pinned. config.yml then has its option
beside its name: `batching: pinned`, `pinned_to: 1`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Batch, Load, ReadyQueue


class PinnedOptions(Struct, frozen=True):
    """Keys of config.yml."""

    pinned_to: Annotated[int, Meta(ge=0), "Number of the worker that runs all, from 0."] = 0


class Pinned(ReadyQueue):
    """Addresses every request to the same worker, once that is done with the one before."""

    Options = PinnedOptions

    def __init__(self, config: OpConfig, options: PinnedOptions) -> None:
        super().__init__()
        self._worker = options.pinned_to
        self._running = 0

    def next(self, load: Load, now: float) -> Batch | float | None:
        """Return the oldest request as a batch."""
        if self._running or not len(self):
            return None
        self._running += 1
        return Batch(self.take(1, load, now), self._worker)

    def done(self, batch: Batch, now: float) -> None:
        """Let the next one go."""
        self._running -= 1
