"""What happened, when, to whom: rows of integers that all who look into a server read.

A turn is one request's pass through one Op. The hot path appends numbers to a `Journal` (0.3 us);
statistics, tracer, profiles, metrics and traces fold its rows later, many at a time, in numpy.
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

_MOST_TURNS = 2048  # before they are folded, which takes some 0.5 us each


class Outcome(enum.IntEnum):
    """How a turn or a request ended. The failures are Triton's reasons for one, and PRODUCT."""

    OK = 0
    REJECTED = 1  # its time was over before it ran
    CANCELED = 2  # the caller went away
    BACKEND = 3  # user code or a model failed, or took too long
    OTHER = 4  # a worker was lost, the server stops, the request failed elsewhere
    PRODUCT = 5  # it could not be served as it was: a product error, or no valid request


BY_CALLERS = (Outcome.CANCELED, Outcome.PRODUCT)
"""Failures that say nothing about the health of the service."""


def outcome_of(error: PipelineError) -> Outcome:
    """How a turn or a request ends that failed with `error` while it was worked on."""
    return Outcome.PRODUCT if error.is_callers else Outcome.BACKEND


FROM_OUTSIDE = (Outcome.REJECTED, Outcome.CANCELED)
"""No Op is the reason for these."""

PIPELINE = -1
"""`target` of a request that is for the whole graph."""

NO_WORKER = -1
"""`worker` of a turn that never ran; its `batch` is -1, its times are those of its end."""

TURN = np.dtype(
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
            "prepared_ns",  # process
            "processed_ns",  # postprocess
            "end_ns",
            "taken_ns",  # the event loop had the result
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
            "entered_ns",  # let into the graph; unpack
            "begun_ns",  # at the first Ops; 0: never got there
            "packing_ns",  # through the graph; pack
            "end_ns",  # answered
            "input_ns",  # sums over its turns that ended well: preprocess,
            "infer_ns",  # process,
            "output_ns",  # postprocess
        )
    ]
)
"""One request from its admission to its answer. Times are `time.monotonic_ns`."""

Rows = npt.NDArray[Any]
"""A one-dimensional structured array of TURN or REQUEST."""


def wall_offset_ns() -> int:
    """What to add to the times of rows, `time.monotonic_ns`, for the time since the epoch."""
    return time.time_ns() - time.monotonic_ns()


class Sink(Protocol):
    """A reader of what happened, called on the event loop: it must not block.

    It may keep the arrays, which are its own to read and nobody's to write. Turns come before the
    end of their request, in the same call or an earlier one; but for those that outlive it.
    """

    def fold(self, turns: Rows, requests: Rows) -> None:
        """Take in what happened since the last call; at least one of both is not empty."""


class Journal:
    """The rows since the last fold. Written and folded on the event loop only.

    Attributes:
        turns: a `packed_turn` each; rows of one batch are added together.
        requests: a `packed_request` each.
        folds: how many there were that had anything in them.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks: list[Sink] = list(sinks)
        self.turns: list[bytes] = []
        self.requests: list[bytes] = []
        self.folds: int = 0

    def fold_if_long(self) -> None:
        """Fold if that is due; called between batches, so that none is torn."""
        if len(self.turns) >= _MOST_TURNS:
            self.fold()

    def fold(self) -> None:
        """Hand what there is to the sinks; costs nothing if there is nothing."""
        if not self.turns and not self.requests:
            return
        self.folds += 1
        turns = np.frombuffer(b"".join(self.turns), TURN)
        requests = np.frombuffer(b"".join(self.requests), REQUEST)
        self.turns.clear()
        self.requests.clear()
        for sink in self.sinks:
            try:
                sink.fold(turns, requests)
            except Exception:  # who only looks on must not harm those who work
                _LOGGER.exception("%s failed to take in what happened", type(sink).__name__)


# Packed they take a quarter of the time of an object each.
packed_turn: Callable[..., bytes] = struct.Struct(f"{TURN.itemsize // 8}q").pack
"""One row of TURN: its fields, in order."""

packed_request: Callable[..., bytes] = struct.Struct(f"{REQUEST.itemsize // 8}q").pack
"""One row of REQUEST: its fields, in order."""
