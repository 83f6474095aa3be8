"""Sent: a run that a worker process has; and what of a stream crosses to it and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.errors import PipelineError
from pipeline.routes import Answer
from pipeline.workers.process.wire import Result, SliceEnd, WireParts, WireSlice
from pipeline.workers.shm.payload import SharedPayload


@dataclass(slots=True)
class Sent:
    """A run that a worker has.

    Attributes:
        indexes: of the items that were sent.
        payloads: keeps in memory what was serialized for it.
        number: of its first job there.
    """

    run: BatchRun
    indexes: list[int]
    payloads: list[SharedPayload]
    number: int


def begin(run: StreamRun, indexes: Sequence[int]) -> list[int]:
    """Make a run ready for its first slice, of these items; return what `WireJob.allowed` is."""
    run.made, run.ended = [0] * len(run.items), [False] * len(run.items)
    return [run.allowed[index] for index in indexes]


def unsent_of(run: StreamRun) -> list[Entry]:
    """Take out the errors of items that could not be sent."""
    failed = [(place, error) for place, error in enumerate(run.outcomes) if error is not None]
    run.outcomes = []
    for place, _ in failed:
        run.ended[place] = True
    return failed


def slice_of(number: int, sent: Sent) -> WireSlice:
    """Return a further slice, as the job with this number."""
    run = cast(StreamRun, sent.run)
    allowed = [run.allowed[index] for index in sent.indexes]
    over = [place for place, index in enumerate(sent.indexes) if run.items[index].is_over]
    return WireSlice(number, sent.number, allowed, over)


def entries_of(sent: Sent, parts: WireParts, outcomes: Sequence[tuple[int, Any]]) -> list[Entry]:
    """Return parts as a StreamRun's owner takes them, and count them: its worker may die."""
    run = cast(StreamRun, sent.run)
    run.start_ns, run.preprocess_end_ns = parts.start_ns, parts.preprocess_end_ns
    entries: list[Entry] = []
    for place, outcome in outcomes:
        index = sent.indexes[place]
        if outcome is None or isinstance(outcome, PipelineError | Answer):
            run.ended[index] = True
        else:
            run.made[index] += 1
        entries.append((index, ENDED if outcome is None else outcome))
    return entries


def take_slice(sent: Sent, result: Result, end: SliceEnd, worker: int) -> bool:
    """Take what a slice has come to; return whether its generators live on."""
    run = cast(StreamRun, sent.run)
    for place, index in enumerate(sent.indexes):
        run.made[index], run.ended[index] = end.made[place], end.ended[place]
    run.groups = [[sent.indexes[place] for place in group] for group in end.groups]
    run.is_finished, run.busy_ns, run.ran_at = end.is_finished, end.busy_ns, worker
    run.start_ns, run.preprocess_end_ns = result.start_ns, result.preprocess_end_ns
    run.end_ns = result.end_ns
    return not end.is_finished
