"""SentRun: a run that a worker process has; and the messages about its stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.flow import ENDED, together
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.errors import PipelineError
from pipeline.routes import Answer
from pipeline.workers.process.sending import SentStream
from pipeline.workers.process.wire import (
    Result,
    SliceEnd,
    StepTimes,
    WireItem,
    WireParts,
    WireSlice,
)
from pipeline.workers.shm.payload import SharedPayload


@dataclass(slots=True)
class SentRun:
    """A run that a worker has.

    Attributes:
        indexes: of the items that were sent.
        payloads: keeps the memory of the sent inputs.
        number: of its first job there.
        allowed: how many parts of each item the job allowed.
        joined: the payloads of items at each place of a run in steps, whose indexes are its places.
    """

    run: BatchRun
    indexes: list[int]
    payloads: list[SharedPayload]
    number: int
    joined: dict[int, list[SharedPayload]] = field(default_factory=dict)
    allowed: list[int] = field(default_factory=list)


def begin(run: StreamRun, indexes: Sequence[int]) -> list[int]:
    """Prepare a run for its first slice, of these items; return `WireJob.allowed`."""
    run.made, run.ended = [0] * len(run.items), [False] * len(run.items)
    return [run.allowed[index] for index in indexes]


def unsent_of(run: StreamRun) -> list[Entry]:
    """Remove and return the errors of items that could not be sent."""
    failed = [(place, error) for place, error in enumerate(run.outcomes) if error is not None]
    run.outcomes = []
    for place, _ in failed:
        run.ended[place] = True
    return failed


def slice_of(number: int, sent: SentRun) -> WireSlice:
    """Return the next slice of a run, as the job with this number."""
    run = cast(StreamRun, sent.run)
    allowed = [run.allowed[index] for index in sent.indexes]
    over = [place for place, index in enumerate(sent.indexes) if run.items[index].is_over]
    return WireSlice(number, sent.number, allowed, over)


def steps_of(number: int, sent: SentRun, joining: list[tuple[int, WireItem]]) -> WireSlice:
    """Return a slice of steps, as the job with this number; 0: only news for the running slice."""
    run = cast(StreamRun, sent.run)
    over = [place for place in run.taken if run.items[place].is_over]
    return WireSlice(number, sent.number, list(run.allowed), over, joining)


def entries_of(sent: SentRun, parts: WireParts, outcomes: Sequence[tuple[int, Any]]) -> list[Entry]:
    """Return parts for a StreamRun's owner, and count them, because the worker may die."""
    run = cast(StreamRun, sent.run)
    run.start_ns, run.preprocess_end_ns = parts.start_ns, parts.preprocess_end_ns
    queued: deque[Entry] = deque()
    for place, outcome in outcomes:
        index = sent.indexes[place] if sent.indexes else place
        if outcome is None or isinstance(outcome, PipelineError | Answer):
            run.ended[index] = True
            sent.joined.pop(index, None)
        else:
            run.made[index] += 1
        queued.append((index, ENDED if outcome is None else outcome))
    entries = together(queued)
    if parts.step is not None:
        run.steps.append(_step(run, entries, parts, parts.step))
    return entries


def _step(run: StreamRun, entries: list[Entry], parts: WireParts, times: StepTimes) -> BatchRun:
    """Return a batch that describes the step that has made parts."""
    first: dict[int, Any] = {}
    for place, outcome in entries:
        first.setdefault(place, outcome)
    return BatchRun(
        [run.items[place] for place in first],
        run.worker,
        parts.start_ns,
        times.end_ns,
        outcomes=list(first.values()),
        rows=times.rows,
        executions=times.executions,
        execution_ends_ns=times.execution_ends_ns,
        preprocess_end_ns=parts.preprocess_end_ns,
        process_end_ns=times.process_end_ns,
    )


def take_slice(sent: SentRun, result: Result, end: SliceEnd, worker: int) -> bool:
    """Take the result of a slice; return whether its generators continue."""
    run = cast(StreamRun, sent.run)
    if run.reports_steps:  # its parts have reported which requests ended
        run.groups, run.busy_ns = [], end.busy_ns
        return True
    if isinstance(run, SentStream):  # its parts report its progress
        run.is_finished, run.busy_ns, run.ran_at = all(run.ended), end.busy_ns, worker
        run.groups, run.notified = [] if run.is_finished else [[0]], [0] * len(run.items)
        for index, allowed in zip(sent.indexes, sent.allowed, strict=True):
            run.notified[index] = allowed
        run.end_ns = result.end_ns
        return not run.is_finished
    for place, index in enumerate(sent.indexes):
        run.made[index], run.ended[index] = end.made[place], end.ended[place]
    run.groups = [[sent.indexes[place] for place in group] for group in end.groups]
    run.is_finished, run.busy_ns, run.ran_at = end.is_finished, end.busy_ns, worker
    run.start_ns, run.preprocess_end_ns = result.start_ns, result.preprocess_end_ns
    run.end_ns = result.end_ns
    return not end.is_finished
