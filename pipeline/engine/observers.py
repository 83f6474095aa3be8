"""EngineObservers: those who are told what happens to the requests of an engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.engine.journal import Journal, pack_request
from pipeline.engine.request import RequestState
from pipeline.errors import ErrorCode, PipelineError

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineObservers:
    """Callbacks on the event loop, which must not block.

    `journal` takes down spans and requests. `on_failure` and `on_success` are called when a
    request was answered; `profile` writes what a caller gets who asked for a profile;
    `begin_trace` makes of (data id, the caller's traceparent or "") the request's own, or "".
    """

    journal: Journal | None = None
    on_failure: Callable[[RequestState, PipelineError], None] = lambda request, error: None
    on_success: Callable[[RequestState], None] | None = None
    profile: Callable[[RequestState], str] | None = None
    begin_trace: Callable[[int, str], str] | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns

    def tell(self, request: RequestState, target: int) -> None:
        """Say how a request ended, which was for `target`, see `journal.REQUEST`; never raises."""
        try:
            if self.journal is not None:
                request.end_ns = request.end_ns or self.clock_ns()
                self.journal.requests.append(packed_request_of(request, target))
            if request.error is not None:
                self.on_failure(request, request.error)
            elif self.on_success is not None:
                self.on_success(request)
        except Exception:  # who only looks on must not harm those who work
            _LOGGER.exception("not all could be told how a request ended")


def packed_request_of(request: RequestState, target: int) -> bytes:
    """Return its row of `engine.journal.REQUEST`."""
    code = 0 if request.error is None else int(request.error.code)
    if code.bit_length() > 63:
        code = int(ErrorCode.PRODUCT_ERROR)
    return pack_request(
        request.data_id,
        target,
        request.rows,
        request.outcome,
        code,
        request.start_ns,
        request.admitted_ns or request.end_ns,  # it may have ended while it waited
        request.dispatched_ns,
        request.completed_ns or request.end_ns,
        request.end_ns,
        request.input_ns,
        request.infer_ns,
        request.output_ns,
    )
