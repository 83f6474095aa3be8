"""Span: what happened, when, to whom. One event; statistics, traces and logs are its readers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class BatchSpan(msgspec.Struct, frozen=True):
    """One batch on one worker of one Op. Times are `time.monotonic_ns`.

    `start_ns` to `prepared_ns` is preprocess, to `processed_ns` process, to `end_ns`
    postprocess. `ready_ns` has, for each request, when it could have started.
    """

    op: str
    worker: int
    data_ids: tuple[int, ...]
    ready_ns: tuple[int, ...]
    start_ns: int
    prepared_ns: int
    processed_ns: int
    end_ns: int
    failed: int


class RequestSpan(msgspec.Struct, frozen=True):
    """One request from its admission to its answer. Times are `time.monotonic_ns`."""

    data_id: int
    log_id: int
    start_ns: int
    end_ns: int
    error: Exception | None


BatchSink = Callable[[BatchSpan], None]
"""A reader of batch spans. Called on the event loop: it must not block."""

RequestSink = Callable[[RequestSpan], None]
"""A reader of request spans. Called on the event loop: it must not block."""
