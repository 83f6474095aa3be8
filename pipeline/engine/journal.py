"""What happened, when, to whom: rows of integers that all who look into a server read.

A span is one request's pass through one Op. The hot path appends numbers to a `Journal` (0.3 us);
statistics, tracer, profiles, metrics and traces take in its rows later, many at a time, in numpy.
"""

from __future__ import annotations

import enum
import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.errors import PipelineError

_LOGGER = logging.getLogger(__name__)

_MAX_SPANS = 2048  # before they are flushed, which takes some 0.5 us each


class Outcome(enum.IntEnum):
    """How a span or a request ended. The failures are Triton's reasons for one, and PRODUCT."""

    OK = 0
    REJECTED = 1  # its time was over before it ran
    CANCELED = 2  # the caller went away
    BACKEND = 3  # user code or a model failed, or took too long
    OTHER = 4  # a worker was lost, the server stops, the request failed elsewhere
    PRODUCT = 5  # it could not be served as it was: a product error, or no valid request


BY_CALLERS = (Outcome.CANCELED, Outcome.PRODUCT)
"""Failures that say nothing about the health of the service."""


def outcome_of(error: PipelineError) -> Outcome:
    """How a span or a request ends that failed with `error` while it was worked on."""
    return Outcome.PRODUCT if error.is_callers else Outcome.BACKEND


FROM_OUTSIDE = (Outcome.REJECTED, Outcome.CANCELED)
"""No Op is the reason for these."""

PIPELINE = -1
"""`target` of a request that is for the whole graph."""

NO_WORKER = -1
"""`worker` of a span that never ran; its `batch` is -1, its times are those of its end."""

SPAN = np.dtype(
    [
        (name, np.int64)
        for name in (
            "op",  # index in Graph.ops
            "worker",
            "batch",  # running number of the Op's batches; rows of a batch are neighbours
            "data_id",
            "rows",  # samples that the request brought: its batch size, >= 1
            "outcome",
            "ready_ns",  # could have started
            "start_ns",  # preprocess of the batch
            "preprocess_end_ns",  # process
            "process_end_ns",  # postprocess
            "end_ns",
            "result_received_ns",  # the event loop had the result
        )
    ]
)
"""One request's pass through one Op. Times are `time.monotonic_ns`, those of its whole batch."""

REQUEST = np.dtype(
    [
        (name, np.int64)
        for name in (
            "data_id",
            "target",  # PIPELINE, or the index of the only Op that it is for
            "rows",
            "outcome",
            "code",  # err_no; 0 is none
            "start_ns",  # admitted
            "admitted_ns",  # let into the graph; unpack
            "dispatched_ns",  # at the first Ops; 0: never got there
            "completed_ns",  # through the graph; pack
            "end_ns",  # answered
            "input_ns",  # sums over its turns that ended well: preprocess,
            "infer_ns",  # process,
            "output_ns",  # postprocess
        )
    ]
)
"""One request from its admission to its answer. Times are `time.monotonic_ns`."""

Rows = npt.NDArray[Any]
"""A one-dimensional structured array of SPAN or REQUEST."""


def wall_offset_ns() -> int:
    """What to add to the times of rows, `time.monotonic_ns`, for the time since the epoch."""
    return time.time_ns() - time.monotonic_ns()


class Sink(Protocol):
    """A reader of what happened, called on the event loop: it must not block.

    It may keep the arrays, which are its own to read and nobody's to write. Spans come before the
    end of their request, in the same call or an earlier one; but for those that outlive it.
    """

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Take in what happened since the last call; at least one of both is not empty."""


class Journal:
    """The rows since the last flush. Written and flushed on the event loop only.

    Attributes:
        spans: a `pack_span` each; rows of one batch are added together.
        requests: a `pack_request` each.
        flushes: how many there were that had anything in them.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks: list[Sink] = list(sinks)
        self.spans: list[bytes] = []
        self.requests: list[bytes] = []
        self.flushes: int = 0

    def flush_if_long(self) -> None:
        """Flush if that is due; called between batches, so that none is torn."""
        if len(self.spans) >= _MAX_SPANS:
            self.flush()

    def flush(self) -> None:
        """Hand what there is to the sinks; costs nothing if there is nothing."""
        if not self.spans and not self.requests:
            return
        self.flushes += 1
        spans = np.frombuffer(b"".join(self.spans), SPAN)
        requests = np.frombuffer(b"".join(self.requests), REQUEST)
        self.spans.clear()
        self.requests.clear()
        for sink in self.sinks:
            try:
                sink.notify(spans, requests)
            except Exception:  # who only looks on must not harm those who work
                _LOGGER.exception("%s failed to take in what happened", type(sink).__name__)


# Packed they take a quarter of the time of an object each.
pack_span: Callable[..., bytes] = struct.Struct(f"{SPAN.itemsize // 8}q").pack
"""One row of SPAN: its fields, in order."""

pack_request: Callable[..., bytes] = struct.Struct(f"{REQUEST.itemsize // 8}q").pack
"""One row of REQUEST: its fields, in order."""
