"""Passage: the way of requests to workers that only pass them on: no batch, no thread, no wait."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from pipeline.engine.op.lone_run import LoneRun
from pipeline.engine.op.shortcut import Shortcut, lets_each_pass
from pipeline.engine.ports import OpNode, Router
from pipeline.engine.request import Recipient, RequestState
from pipeline.engine.worker_api import Loop, Worker


class PassingRun(LoneRun, eq=False):
    """An Item that others work on; whoever knows says how long, as `start_ns` to `end_ns`."""

    process_end_ns: int = 0


@runtime_checkable
class Passing(Protocol):
    """Workers that hand requests to somebody else, on the event loop.

    Attributes:
        passing_type: what they take; they tell their owner that it is done, perhaps at once.
    """

    passing_type: type[PassingRun]

    def pass_on(self, run: Any) -> None:
        """Take a request, which is of `passing_type`."""


class Passage(Shortcut):
    """The shortcut of an Op whose workers are `Passing`."""

    def __init__(self, node: OpNode, router: Router, loop: Loop) -> None:
        super().__init__(node, router, loop)
        workers: Any = node.workers
        self._make = workers.passing_type
        self._pass_on = workers.pass_on

    @staticmethod
    def is_there(node: OpNode) -> bool:
        """Return whether an Op has one."""
        return isinstance(node.workers, Passing) and lets_each_pass(node)

    def workers_are_there(self) -> None:
        """Ignore it: they are as they were."""

    def take(
        self, request: RequestState, inputs: dict[str, Any], entered: tuple[Recipient, ...]
    ) -> bool:
        """Pass a request on, unless it has come back in a loop."""
        node = self._node
        if request.laps is not None or not node.load.workers:
            return False
        spans = node.spans
        if request.spans is not None:
            spans.is_wanted = True
        ready_ns = spans.clock_ns() if spans.is_wanted else 0
        run = self._make(
            request, request.generation, request.data_id, request.log_id, inputs, 0.0, ready_ns
        )
        run.start_ns = ready_ns
        self._takes(request)
        self._pass_on(run)
        return True

    def _take_down(self, worker: Worker, job: Any) -> None:
        """Take down its span, and add to its request's times."""
        spans = self._node.spans
        times = job.start_ns, job.preprocess_end_ns, job.process_end_ns, job.end_ns
        spans.alone(job, job.outcome, worker.number, times, spans.clock_ns())


def shortcut_of(node: OpNode, router: Router, loop: Loop) -> Shortcut | None:
    """Return the way past an Op's scheduler; None: there is none."""
    for kind in (Passage, Shortcut):
        if kind.is_there(node):
            return kind(node, router, loop)
    return None
