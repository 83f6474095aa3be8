"""Warm-up: samples that a worker runs after its Op is initialised, before any request comes.

They pass only the stages of a batch: no queue, no statistics.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.data import RequestInfo, contexts_of
from pipeline.engine.op.answer_form import unpacked
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import InitError, PipelineError

_LOGGER = logging.getLogger(__name__)


class WarmUpSample(msgspec.Struct, frozen=True, array_like=True):
    """Equal requests that a worker runs together.

    Args:
        feed: the feed of `process` for each, as `answer_form.packed` writes it.
        requests: number of requests.
        count: how often they run.
        together: whether they are one batch; otherwise each runs alone.
        controls: names in `feed` that the worker itself adds for an Op with sequences.
    """

    name: str
    feed: bytes
    requests: int = 1
    count: int = 1
    together: bool = True
    controls: tuple[str, ...] = ()


class _SampleItem:
    """A request for warm-up, with the attributes that a BatchRun reads."""

    data_id = log_id = 0
    deadline = None
    trace = ""
    is_feed = True
    is_over = False

    def __init__(self, inputs: dict[str, Any], info: RequestInfo) -> None:
        self.inputs: dict[str, Any] = inputs
        self.info: RequestInfo = info

    def is_cancelled(self) -> bool:
        """Return False: there is no client."""
        return False


class _NoWatch:
    """A CallWatch without a timeout."""

    def call_begins(self) -> None: ...
    def call_ends(self) -> None: ...


def warm_up(op: BoundOp, number: int) -> None:
    """Run the samples of an Op in its worker with this number.

    Raises InitError: one of them failed; with Triton's text.
    """
    name = op.op.name
    instance = f"{name}_0" + f"_{number}" * (op.op.pipeline_config.concurrency > 1)
    for sample in op.op.pipeline_warm_up:
        for iteration in range(1, sample.count + 1):
            _LOGGER.debug(
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                *(name, instance, sample.name, iteration),
            )
            errors = _errors_of(op, sample)
            if errors:
                reasons = "".join(f"{error}; " for error in errors)
                raise InitError(f"failed to run warmup sample '{sample.name}': {reasons}")


def _errors_of(op: BoundOp, sample: WarmUpSample) -> list[PipelineError]:
    """Run a sample once; return its errors."""
    is_sequence = op.feeds is not None
    items = []
    for number in range(1, sample.requests + 1):
        feed = unpacked(sample.feed)
        for name in sample.controls if is_sequence else ():
            del feed[name]
        info = RequestInfo(sequence_id=number, sequence_start=True, sequence_end=True)
        items.append(_SampleItem(feed, info if is_sequence else RequestInfo()))
    batches = [items] if sample.together else [[item] for item in items]
    if inspect.isgeneratorfunction(op.op.process):
        return [error for item in items for error in _streamed(op, item)]
    return [error for batch in batches for error in _ran(op, batch, is_sequence)]


def _ran(op: BoundOp, items: Sequence[_SampleItem], is_sequence: bool) -> list[PipelineError]:
    run = BatchRun(items, places=range(len(items)) if is_sequence else None)
    run.run(op, _NoWatch(), time.monotonic_ns)
    return [outcome for outcome in run.outcomes if isinstance(outcome, PipelineError)]


def _streamed(op: BoundOp, item: _SampleItem) -> list[PipelineError]:
    """Run a request at an Op that answers in parts, to its end."""
    keywords = {"context": contexts_of([item], None)} if op.op.process.__name__ in op.asking else {}
    try:
        for _ in op.op.process([item.inputs], 0, **keywords):
            pass
    except PipelineError as error:
        return [error]
    return []
