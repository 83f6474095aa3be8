"""OpFacts: constants from an Op's configuration and class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.data import announced_batch, declares, max_batch_size_of
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import plan, plan_each
from pipeline.engine.run.hooks import asking, yields
from pipeline.engine.run.ragged import RaggedBatch, ragged_batch_of
from pipeline.op import Op, RequestOp, overrides, predictor_of, runs_process

Plan = Callable[[Mapping[int, Any], int], list[Call]]


class OpFacts:
    """Facts of an Op that do not change while it runs.

    Attributes:
        most_rows: the most rows in one call of `process`; 0: any number.
        most_fed_rows: the same for requests that skip `preprocess`.
        plan: makes the calls of `process` for the items of a batch; see `collate.plan`.
        merges: whether requests of a batch are merged into one feed.
        asking: the names of the hooks that ask for the context of their requests.
        hands_on_feeds: whether the model gets exactly the feed of `process`.
        hands_on_fields: whether the model gets exactly the fields of the client's request.
        is_plain: whether the Op only has `preprocess` and `postprocess`, and neither asks for a
            context.
        streams: the name of the hook that is a generator; "": none.
    """

    def __init__(self, op: Op) -> None:
        self.name: str = op.name
        self.runs_process: bool = runs_process(op)
        self.has_model: bool = predictor_of(op) is not None
        most = max_batch_size_of(op)
        self.most_rows: int = most if self.has_model or declares(op) else 0
        self.most_fed_rows: int = announced_batch(most, op.pipeline_config.batch_size)
        self.merges: bool = op.pipeline_merges
        self.plan: Plan = plan_of(op)
        self.attempts: int = max(1, op.pipeline_config.retry)
        self.timeout_s: float | None = op.pipeline_config.timeout_s
        self.jumps: bool = op.is_jump_op()
        self.asking: frozenset[str] = asking(op)
        streaming = [hook for hook in ("process", "postprocess") if yields(op, hook)]
        self.streams: str = streaming[0] if streaming else ""
        self.hands_on_feeds: bool = op.pipeline_hands_on or not overrides(op, "process")
        self.hands_on_fields: bool = op.pipeline_hands_on or _hands_on(op)
        self.is_plain: bool = not (
            self.runs_process
            or self.has_model
            or self.most_rows
            or self.jumps
            or self.asking
            or self.streams
        )


def _hands_on(op: Op) -> bool:
    """Return whether an Op, and the RequestOp that it reads, override none of these hooks."""
    reads = [*op.get_input_ops()]
    if not reads or overrides(op, "preprocess") or overrides(op, "process"):
        return False
    return not any(
        not isinstance(reader, RequestOp) or overrides(reader, "unpack_request_package")
        for reader in reads
    )


def plan_of(op: Op) -> Plan:
    """Return the function that makes calls of `process` for the items of a batch."""
    ragged = _ragged_batch(op)
    if ragged is not None:
        return ragged.plan
    return plan if op.pipeline_merges else plan_each


def has_columns(op: Op) -> bool:
    """Return whether scalars are columns for `process`; see `collate.with_columns`."""
    is_merged = op.pipeline_config.batch_size > 1 and op.pipeline_merges and not is_ragged(op)
    return is_merged and overrides(op, "process")


def is_ragged(op: Op) -> bool:
    """Return whether requests of different shapes become one feed at an Op."""
    return _ragged_batch(op) is not None


def _ragged_batch(op: Op) -> RaggedBatch | None:
    own: RaggedBatch | None = op.pipeline_ragged_batch
    return own or ragged_batch_of(op.pipeline_config)
