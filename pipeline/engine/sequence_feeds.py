"""SequenceFeeds: what the sequences at one copy of an Op add to what its `process` is fed.

Plain code for any worker, as `engine.batch_run`. An Op whose `sequence` has neither states nor
controls has none, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.data import SequenceStep
from pipeline.engine.collate import Call, plan
from pipeline.op import Op


class FedCall:
    """One call of `process` with what its sequences add.

    Attributes:
        feed: for `process`: the call's own, and what was added.
        slots: of the sequences that its rows belong to.
    """

    def __init__(self, call: Call, steps: Sequence[SequenceStep]) -> None:
        self.feed: Any = call.feed
        self.slots: list[int] = [steps[index].slot for index in call.items]

    def without_own(self, result: Any) -> Any:
        """Return the result of `process` with only what is for the requests of the call."""
        return result

    def keep(self) -> None:
        """Keep what the result has for the next steps: the call has succeeded."""


class SequenceFeeds:
    """States and controls of the sequences at one copy of an Op.

    Args:
        op: the worker's copy.
    """

    def __init__(self, op: Op) -> None:
        self.op = op

    def begin(self, steps: Sequence[SequenceStep]) -> None:
        """Take note of a batch: who begins has nothing of who had the slot before."""

    def plan(
        self, feeds: Mapping[int, Any], steps: Sequence[SequenceStep], most_rows: int
    ) -> list[Call]:
        """Return the calls that serve `feeds`; see `collate.plan`.

        Args:
            feeds: by the item's index in the batch.
            steps: of all items of the batch.
        """
        return plan(feeds, most_rows) if feeds else []

    def fed(self, call: Call, steps: Sequence[SequenceStep]) -> FedCall:
        """Return what `process` is fed in a call, which is asked anew for each attempt."""
        return FedCall(call, steps)


def feeds_of(op: Op) -> SequenceFeeds | None:
    """Return what an Op's sequences add to its feeds; None: nothing."""
    return SequenceFeeds(op) if feeds_sequences(op) else None


def feeds_sequences(op: Op) -> bool:
    """Return whether an Op's `sequence` has states or controls."""
    return bool(op.pipeline_config.sequence.state or op.pipeline_config.sequence.controls)


def hidden_inputs(op: Op) -> frozenset[str]:
    """Return the names that `process` is fed and callers do not send: states and controls."""
    sequence = op.pipeline_config.sequence
    states = [state.input_name for state in sequence.state]
    return frozenset([*states, *(control.name for control in sequence.controls)])


def hidden_outputs(op: Op) -> frozenset[str]:
    """Return the names that `process` returns and callers do not get: states that are kept."""
    listed = {tensor.name for tensor in op.output_tensors}
    listed.update(op.pipeline_config.fetch_list or ())
    listed.update(op.pipeline_config.local_service_conf.fetch_list or ())
    return frozenset(state.output_name for state in op.pipeline_config.sequence.state) - listed
