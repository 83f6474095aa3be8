"""The edges of the graph: a user's own unpack and pack methods, run by threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.engine.batch_run import CallWatch
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.request import RequestState
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError
from pipeline.proto.pipeline.large import LargeResponse, is_short
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import AbandonedError, wanted_while


class PackJob:
    """A call of an unpack or pack method that may take a while, run by a worker of that Op.

    `method` is the name of an overridden one, or a function of ours. `keeps` is whatever the
    argument needs to stay alive.
    """

    __slots__ = ("argument", "keeps", "method", "request", "result")

    def __init__(
        self, request: RequestState, method: str | Callable[[Any], Any], argument: Any
    ) -> None:
        self.request: RequestState = request
        self.method: str | Callable[[Any], Any] = method
        self.argument: Any = argument
        self.keeps: Any = None
        self.result: Any = None

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        if self.is_stale:
            return
        try:
            with wanted_while(self._is_wanted):
                if isinstance(self.method, str):
                    result = op.call(self.method, self.argument)
                else:
                    result = self.method(self.argument)
        except AbandonedError:
            return
        # Known here, so that who writes the answers that are packed on the loop need not look.
        is_large = isinstance(result, Response) and not is_short(result)
        self.result = LargeResponse(result) if is_large else result

    def _is_wanted(self) -> bool:
        return not self.is_stale

    @property
    def is_stale(self) -> bool:
        return self.request.answer.done()


class PackRunner:
    """Owns the workers of unpack or pack, which are always threads."""

    def __init__(self, done: Callable[[Worker, PackJob], None]) -> None:
        self.done = done

    def lost(self, job: PackJob, error: PipelineError) -> None:
        """Threads lose no job."""

    def workers_changed(self) -> None:
        """The edges count for nothing in the server's readiness."""
