"""OpFilter: an extra of an Op around its scheduler, such as a cache, a limit or an order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.engine.state import OpState
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.op.channel import Item
    from pipeline.engine.request import RequestState
    from pipeline.engine.run.payload import Absent
    from pipeline.engine.run.stages import BatchRun

Again = tuple[Sequence["BatchRun"], Sequence["Item"], PipelineError]
"""The outcome of a lost batch: batches to begin again, failed items, the error of these."""

_STEPS = ("add", "submit", "release", "pass_on", "schedule", "again")


class OpFilter:
    """Base of the filters around an Op's scheduler: override the steps that you need.

    The first six steps are methods of the dispatcher. They are called through the filters, the
    outermost first; `call_next` is the same step of the next filter, or of the dispatcher. A step
    that no filter overrides costs nothing. The other methods are called after the dispatcher's own.

    Attributes:
        goes_alone: why the Op of such a filter cannot be in a trip; "": it can.
        parked: how many requests wait here, and not in the scheduler.
    """

    group_obstacle: str = ""
    parked: int = 0

    def add(self, call_next: Callable[[Item], None], item: Item) -> None:
        """Take an item before it is queued."""
        call_next(item)

    def submit(self, call_next: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        """Take batches before they go to the workers."""
        call_next(runs)

    def release(self, call_next: Callable[[Any], None], run: BatchRun | Item) -> None:
        """Note that a batch has left the workers; its answers follow."""
        call_next(run)

    def pass_on(
        self, call_next: Callable[..., None], item: Item, outcome: Any, jumped: bool = False
    ) -> None:
        """Take the outcome of an item."""
        call_next(item, outcome, jumped)

    def schedule(self, call_next: Callable[[], None]) -> None:
        """Have batches cut, after something has happened."""
        call_next()

    def again(self, call_next: Callable[..., Again], job: BatchRun, error: PipelineError) -> Again:
        """Decide which items of a lost batch run again, and what the others fail with."""
        return call_next(job, error)

    def passed_by(self, request: RequestState, error: PipelineError | Absent) -> None:
        """Note that an error or Absent of a request passes this Op."""

    def leave(self, numbers: Collection[int]) -> bool:
        """Let these workers leave when they can, and return True; False: they may leave at once."""
        return False

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples may come as a convoy; 0: any number."""
        return 0

    def complete_state(self, state: OpState) -> OpState:
        """Return the state of the Op, completed by this filter."""
        return state

    def close(self) -> None:
        """Release what the filter holds."""


class FilteredDispatcher(Protocol):
    """An Op's dispatcher, as its filters see it.

    Attributes:
        filters: the filters, the outermost first.
        goes_alone: why the Op cannot be in a trip; "": nothing prevents it.
        shortcut: the path around the scheduler; None: there is none.
    """

    filters: tuple[OpFilter, ...]
    group_obstacle: str
    shortcut: Any


def surround(node: FilteredDispatcher, *filters: OpFilter, within: bool = False) -> None:
    """Put filters around those of the Op; with `within`, directly around the Op itself.

    Each step that one of them overrides replaces the dispatcher's method.
    """
    node.filters = (*node.filters, *filters) if within else (*filters, *node.filters)
    node.shortcut = None  # it would skip the filters
    for op_filter in filters:
        node.group_obstacle = node.group_obstacle or op_filter.group_obstacle
    for step in _STEPS:
        vars(node).pop(step, None)
        for op_filter in reversed(node.filters):
            if getattr(type(op_filter), step) is not getattr(OpFilter, step):
                setattr(node, step, partial(getattr(op_filter, step), getattr(node, step)))
