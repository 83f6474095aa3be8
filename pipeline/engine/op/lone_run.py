"""LoneRun: one request at an Op without `process`: what waits and what runs in one object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pipeline.engine.op.channel import Item
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun


class LoneRun(Item, eq=False):
    """An Item that runs as a PlainStep does, at an Op that `is_plain`; see there.

    Attributes:
        apart: the batch that it has become, when its worker was given up.
    """

    worker: ClassVar[None] = None  # any will do

    start_ns: int = 0
    preprocess_end_ns: int = 0
    end_ns: int = 0
    outcome: Any = None
    apart: BatchRun | None = None

    def run(self, op: BoundOp, watch: object, clock_ns: Callable[[], int]) -> None:
        """Run both stages, unless its request is over."""
        if self.generation == self.request.generation:
            self.start_ns = clock_ns()
            told = self.inputs, self.data_id, self.log_id
            self.outcome, self.preprocess_end_ns = op.plain(*told, clock_ns, self)
            self.end_ns = clock_ns()

    @property
    def items(self) -> tuple[Item]:
        """Return itself, as any batch has items."""
        return (self,)

    def taken_out(self) -> BatchRun:
        """Make it a batch, which can be given up and started over."""
        self.apart = BatchRun([self])
        return self.apart
