"""Call: one call of `process`, for some or all items of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import field

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.run.ragged import RaggedBatch


class Call(msgspec.Struct, eq=False):
    """One call of `process`.

    Attributes:
        items: the indexes, in the batch, of its items.
        spans: for each countable thing (rows, sequences, tokens), how many of it every item has.
        part: the place in the list of a mini-batch.
        end_ns: set if the batch has several calls.
        sources: if the Op's batches are `ragged`, the result of preprocess for each item.
    """

    feed: Any
    items: list[int]
    spans: list[list[int]] = field(default_factory=list)
    part: int | None = None
    attempts: int = 0
    result: Any = None
    error: PipelineError | None = None
    done: bool = False
    end_ns: int = 0
    ragged: RaggedBatch | None = None
    sources: list[Any] = field(default_factory=list)

    def alone(self, items: Mapping[int, Any], attempts: int = 0) -> list[Call]:
        """Return one call for each item of a merged call, with `attempts` counted already.

        Args:
            items: index in the batch -> the result of preprocess.
        """
        if self.ragged is not None:
            return self.ragged.alone(self, attempts)
        return [Call(items[index], [index], attempts=attempts) for index in self.items]
