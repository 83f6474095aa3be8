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

_STEPS = ("add", "submit", "release", "pass_on", "schedule", "start_over")


class OpFilter:
    """Base of what stands around an Op's scheduler: override the steps that are needed.

    The first six steps are methods of the dispatcher, which are called through the filters, the
    outermost first; `go_on` is the same step of what is within. What no filter overrides costs
    nothing. The others are asked after the dispatcher itself.

    Attributes:
        goes_alone: why the Op of such a filter is in no trip.
        parked: requests that wait here, and not in the scheduler.
    """

    goes_alone: str = ""
    parked: int = 0

    def add(self, go_on: Callable[[Item], None], item: Item) -> None:
        """Take a request that is to wait for its turn."""
        go_on(item)

    def submit(self, go_on: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        """Take batches that go to the workers."""
        go_on(runs)

    def release(self, go_on: Callable[[Any], None], run: BatchRun | Item) -> None:
        """Take note that a batch is no longer at the workers; its answers follow."""
        go_on(run)

    def pass_on(
        self, go_on: Callable[..., None], item: Item, outcome: Any, jumped: bool = False
    ) -> None:
        """Take what came of a request."""
        go_on(item, outcome, jumped)

    def schedule(self, go_on: Callable[[], None]) -> None:
        """Have batches cut, as something has happened."""
        go_on()

    def start_over(self, go_on: Callable[..., None], job: BatchRun, error: PipelineError) -> None:
        """Start over a batch that was lost, or end its requests with `error`."""
        go_on(job, error)

    def passed_by(self, request: RequestState, error: PipelineError | Absent) -> None:
        """Take note that nothing comes here of a request."""

    def leave(self, numbers: Collection[int]) -> bool:
        """Have these workers go when they can, and return True; False: they may go at once."""
        return False

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples may come as one; 0: it has no say."""
        return 0

    def seen(self, state: OpState) -> OpState:
        """Return the state of the Op with what is known here."""
        return state

    def close(self) -> None:
        """Give back what is held."""


class FilteredDispatcher(Protocol):
    """An Op's dispatcher, to its filters.

    Attributes:
        filters: those that are there, the outermost first.
        goes_alone: why the Op is in no trip; "": nothing of its own is against it.
        shortcut: the way past the scheduler; None: there is none.
    """

    filters: tuple[OpFilter, ...]
    goes_alone: str
    shortcut: Any


def surround(node: FilteredDispatcher, *filters: OpFilter, within: bool = False) -> None:
    """Put filters around all that an Op has already; or within, around the Op itself.

    Each step that one of them overrides is bound in the place of the dispatcher's method.
    """
    node.filters = (*node.filters, *filters) if within else (*filters, *node.filters)
    node.shortcut = None  # which leads past them
    for op_filter in filters:
        node.goes_alone = node.goes_alone or op_filter.goes_alone
    for step in _STEPS:
        vars(node).pop(step, None)
        for op_filter in reversed(node.filters):
            if getattr(type(op_filter), step) is not getattr(OpFilter, step):
                setattr(node, step, partial(getattr(op_filter, step), getattr(node, step)))
