"""The seam between a walk and those who run it: who lends workers, who hosts whole groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.walk import Walk, WalkPlan

Run = Any
"""Work of one step of a walk: a BatchRun, or what runs as a PlainStep does."""


class Stepper(Worker, Protocol):
    """A worker whose Op can be run by another worker's thread.

    Attributes:
        job: whoever runs the Op sets it before `perform`: from then on others may make the step
            the worker's own, and set what that has become.
        began_ns: when it begins; set with it.
    """

    job: Any
    began_ns: int

    @property
    def op(self) -> Any:
        """Return its copy of the Op, a BoundOp."""

    def perform(self, run: Run, clock_ns: Callable[[], int]) -> None:
        """Run a batch, or a step, with this worker's own copy of the Op, as its thread would."""


@runtime_checkable
class Lender(Protocol):
    """Workers that lend those that are idle, in any thread."""

    def borrow(self) -> Stepper | None:
        """Return a worker that is idle, and is nobody else's until it is given back."""

    def give_back(self, worker: Any) -> None:
        """Let a borrowed worker be idle again, or take what waits for it."""

    def states(self) -> Iterable[dict[str, Any]]:
        """Return the attributes of each worker's copy of the Op."""

    def part(self, walk: Walk) -> tuple[int, Any, BatchRun] | None:
        """Take a walk of one of these workers from it, on the loop.

        The step that runs becomes a job of the worker that was borrowed for it, and the walker is
        idle. Returns (place of the step, its worker, its run); None if no step runs just now.
        """


@runtime_checkable
class DirectLender(Lender, Protocol):
    """Workers in this process, each of which may `enter` its context: walks take them in line.

    Attributes:
        idle: those that are; any thread takes the last one, or adds one that it has used.
        backlog: what waits for one of them, and is first.
    """

    idle: list[Any]
    backlog: deque[Any]

    def employ(self, worker: Any) -> None:
        """Have a worker, which was idle a moment ago, take what waits for it."""


class WalkOwner(Protocol):
    """Listener to a host, beside the owner of its leader's workers, which is told what is done."""

    def returned(self, walk: Walk) -> None:
        """Take back a walk that was not begun."""

    def crashed(self, walk: Walk, error: PipelineError) -> None:
        """Take note that the process ended in the step of `walk` that is held."""

    def host_changed(self) -> None:
        """`is_up` or `has_failed` of a host is not what it was."""


class Host(Protocol):
    """Processes that run the walks of one group, with copies of all its Ops.

    Attributes:
        has_failed: whether they could not be started.
    """

    has_failed: bool

    @property
    def is_up(self) -> bool:
        """Return whether it takes walks."""

    def walk(self, walks: Sequence[Walk]) -> None:
        """Run walks of one item each; those that are not begun soon are returned."""

    def slow_step(self, walk: Walk, limit_s: float) -> tuple[int, Any, BatchRun] | None:
        """Return (place, worker, run) of the step, behind the first, that has lasted so long."""

    def part(self, walk: Walk) -> tuple[int, Any, BatchRun] | None:
        """Take a walk from it, as `Lender.part` does; what the step does comes to nothing."""

    def take_back_all(self) -> None:
        """Return what is not begun."""

    def retire(self) -> None:
        """End when what is begun is done."""


@runtime_checkable
class Hosting(Protocol):
    """Workers in processes, which walks of theirs need processes of their own for.

    Attributes:
        keeps_state: whether the Op was seen to keep something from request to request: it is not to
            have further copies.
    """

    keeps_state: bool

    def host(self, plan: WalkPlan, owner: WalkOwner) -> Host:
        """Start the processes of a group that these workers' Op leads."""
