"""The edges of the graph: a user's own unpack and pack methods, run by threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.engine.binding import BoundOp
from pipeline.engine.request import InFlight
from pipeline.engine.stages import CallWatch
from pipeline.engine.workers.base import Worker
from pipeline.errors import PipelineError


class EdgeJob:
    """A call of an overridden unpack or pack method, run by a worker of that Op.

    `keeps` is whatever the argument needs to stay alive.
    """

    __slots__ = ("argument", "keeps", "method", "request", "result")

    def __init__(self, request: InFlight, method: str, argument: Any) -> None:
        self.request: InFlight = request
        self.method: str = method
        self.argument: Any = argument
        self.keeps: Any = None
        self.result: Any = None

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        self.result = op.call(self.method, self.argument) if not self.is_stale else None

    @property
    def is_stale(self) -> bool:
        return self.request.answer.done()


class Edge:
    """Owns the workers of unpack or pack, which are always threads."""

    def __init__(self, done: Callable[[Worker, EdgeJob], None]) -> None:
        self.done = done

    def lost(self, job: EdgeJob, error: PipelineError) -> None:
        """Threads lose no job."""

    def workers_changed(self) -> None:
        """The edges count for nothing in the server's readiness."""
