"""SequenceFeeds: what the sequences at one copy of an Op add to the feed of `process`.

Plain code for any worker, as `engine.run.stages`. An Op whose `sequence` has neither states nor
controls has no SequenceFeeds, and no cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.batching import has_sequences, traits_of
from pipeline.config.sequences import Control, Kind, controls_of
from pipeline.data import SequenceStep
from pipeline.engine.run.call import Call
from pipeline.engine.run.op_facts import is_ragged, plan_of
from pipeline.engine.sequences.controls import Controls, gathered, in_slots, is_one_row, spread
from pipeline.engine.sequences.states import FOLDER, SlotStates, specs_of
from pipeline.errors import InitError, InputError
from pipeline.op import Op, overrides, predictor_of
from pipeline.routes import Answer, answer_with


class FedCall:
    """One call of `process` with the additions of its sequences.

    If there are fillers, the row of each request is at the place of its slot.

    Args:
        steps: of all items of the batch.
        listed: output names of states that the requests also get.
        has_fillers: whether there are rows for slots without a request.

    Attributes:
        feed: for `process`: the call's own, and the additions.
        slots: of the sequences of its rows; None: a filler.
    """

    def __init__(
        self,
        call: Call,
        steps: Sequence[SequenceStep],
        states: SlotStates,
        controls: Controls,
        listed: frozenset[str],
        has_fillers: bool,
    ) -> None:
        self._steps = [steps[index] for index in call.items]
        self._states = states
        self._listed = listed
        self._next: dict[str, np.ndarray] = {}
        self._places = [step.slot for step in self._steps] if has_fillers else []
        rows: list[SequenceStep | None] = [*self._steps]
        own = call.feed
        if has_fillers:
            rows = in_slots(self._steps)
            own = spread(own, self._places)
        self.slots: list[int | None] = [None if step is None else step.slot for step in rows]
        self.feed: Any = {**own, **states.feed(self.slots), **controls.arrays(rows)}

    def without_states(self, result: Any) -> Any:
        """Return the result of `process` with only the outputs for the requests of the call.

        Raises:
            PayloadTypeError: a state is not as declared.
        """
        whole = result.answer if isinstance(result, Answer) else result
        states = self._states
        self._next = {
            spec.input_name: self.feed[spec.input_name]
            for spec in states.specs
            if spec.is_one_buffer
        }
        if not isinstance(whole, dict) or not (states.specs or self._places):
            return result
        self._next |= states.returned(whole, len(self.slots))
        own = {spec.output_name for spec in states.specs} - self._listed
        rest = {name: value for name, value in whole.items() if name not in own}
        for name in self._listed & rest.keys():
            rest[name] = np.array(rest[name])  # the client may write into it
        if self._places:
            rest = gathered(rest, self._places)
        return answer_with(rest, result.head) if isinstance(result, Answer) else rest

    def keep(self) -> None:
        """Keep the states of the result for the next steps: the call has succeeded."""
        if self._next:
            self._states.keep(self.slots, self._next)
        for step in self._steps:
            if step.end:
                self._states.drop(step.slot)


class SequenceFeeds:
    """States and controls of the sequences at one copy of an Op.

    Args:
        op: the worker's copy, with its predictor; the predictor fetches the states from now on.

    Raises:
        InitError: a file does not hold the initial state, or a model has no such state.
    """

    def __init__(self, op: Op) -> None:
        states = op.pipeline_config.sequence.state
        self._states = SlotStates(op.name, specs_of(states, _folders(op)))
        self._keeps_elsewhere = op.pipeline_config.sequence.checkpoint
        self._listed = frozenset(state.output_name for state in states) - hidden_outputs(op)
        flat: list[str] = []
        is_default = op.pipeline_hands_on or not overrides(op, "process")
        if predictor_of(op) is not None and is_default:
            _fetch_states(op, self._states)
            flat = _flat_controls(op)
        controls = controls_of(op.name, op.pipeline_config.sequence.controls)
        self._controls = Controls(op.name, controls, flat)
        self._has_fillers = has_fillers(op)
        self._plan = plan_of(op)
        if self._has_fillers and is_ragged(op):
            raise InitError(
                f"Op {op.name!r}: allow_ragged_batch, batch_input and batch_output are not for a "
                "sequence with a control that says which slots are ready: each has a row there"
            )
        self._op_name = op.name

    def begin(
        self, steps: Sequence[SequenceStep], given: Mapping[int, dict[str, Any]] | None = None
    ) -> None:
        """Begin a batch: sequences that begin lose the states of earlier ones in their slots.

        Args:
            given: by the index of the step, the states of sequences that were elsewhere.
        """
        self._states.begin(steps)
        for index, states in (given or {}).items():
            if not steps[index].start:
                self._states.restore(steps[index].slot, states)

    def kept(self, steps: Sequence[SequenceStep]) -> dict[int, Any] | None:
        """Return the states of continuing sequences, by the index of the step; None: not needed."""
        if not self._keeps_elsewhere:
            return None
        return {
            index: self._states.copy(step.slot) for index, step in enumerate(steps) if not step.end
        }

    def plan(
        self, feeds: Mapping[int, Any], steps: Sequence[SequenceStep], most_rows: int
    ) -> list[Call]:
        """Return the calls for `feeds`: as `collate.plan`, each for states of one shape.

        Args:
            feeds: by the item's index in the batch.
            steps: of all items of the batch.
        """
        groups: dict[Hashable, dict[int, Any]] = {}
        refused: list[Call] = []
        for index, feed in feeds.items():
            if self._has_fillers and not all(
                map(is_one_row, feed if isinstance(feed, list) else [feed])
            ):
                refused.append(self._refused(index))
                continue
            groups.setdefault(self._states.form(steps[index].slot), {})[index] = feed
        return [
            call for group in groups.values() for call in self._plan(group, most_rows)
        ] + refused

    def _refused(self, index: int) -> Call:
        error = InputError(
            f"inference request to model '{self._op_name}' must specify batch-size 1 due to "
            "requirements of sequence batcher: what preprocess returns has another number of rows"
        )
        return Call({}, [index], error=error, done=True)

    def drop(self, slot: int) -> None:
        """Forget the states of a sequence that has ended."""
        self._states.drop(slot)

    def taken_over(self) -> SequenceFeeds:
        """Return a copy for the worker that takes over, when this one is stuck in a call."""
        feeds = copy(self)
        feeds._states = self._states.taken_over()
        return feeds

    def fed(self, call: Call, steps: Sequence[SequenceStep]) -> FedCall:
        """Return the feed of `process` for a call, made again for each attempt."""
        return FedCall(call, steps, self._states, self._controls, self._listed, self._has_fillers)


def feeds_of(op: Op) -> SequenceFeeds | None:
    """Return the SequenceFeeds of an Op; None: nothing to add. Raises InitError."""
    return SequenceFeeds(op) if feeds_sequences(op) else None


def feeds_sequences(op: Op) -> bool:
    """Return whether an Op's `sequence` has states or controls."""
    return bool(op.pipeline_config.sequence.state or op.pipeline_config.sequence.controls)


def controls_at(op: Op) -> Sequence[Control]:
    """Return the controls in an Op's configuration, and the controls that the Op adds."""
    return (*controls_of(op.name, op.pipeline_config.sequence.controls), *op.pipeline_controls)


def has_fillers(op: Op) -> bool:
    """Return whether each slot of an Op's workers has a row of its own in their batches."""
    config = op.pipeline_config
    has_ready_control = any(control.kind is Kind.READY for control in controls_at(op))
    strategy = config.sequence.strategy if has_sequences(config) else None
    has_places = strategy is not None and traits_of(strategy, "strategies").keeps_places
    has_axes = all(state.batch_axis != -1 for state in config.sequence.state)
    return has_ready_control and has_places and config.batch_size > 1 and has_axes


def hidden_inputs(op: Op) -> frozenset[str]:
    """Return the inputs of `process` that clients do not send: states, controls, shapes."""
    sequence = op.pipeline_config.sequence
    states = [state.input_name for state in sequence.state]
    made = [
        name for batch_input in op.pipeline_config.batch_input for name in batch_input.target_name
    ]
    return frozenset([*states, *(control.name for control in sequence.controls), *made])


def hidden_outputs(op: Op) -> frozenset[str]:
    """Return the outputs of `process` that clients do not get: states that are kept."""
    listed = {tensor.name for tensor in op.output_tensors}
    listed.update(op.pipeline_config.fetch_list or ())
    listed.update(op.pipeline_config.local_service_conf.fetch_list or ())
    return frozenset(state.output_name for state in op.pipeline_config.sequence.state) - listed


def _folders(op: Op) -> list[Path]:
    """Return the folders that may have the files of an Op's initial states."""
    base, model = op.pipeline_base_dir, op.pipeline_config.local_service_conf.model_config
    if model is None:
        return [base / FOLDER, base, Path()]
    at = base / model if (base / model).exists() else Path(model)
    return [base / FOLDER, (at if at.is_dir() else at.parent) / FOLDER, base, Path()]


def _flat_controls(op: Op) -> list[str]:
    """Return the controls that a model takes as [rows], not as [rows, 1].

    Raises:
        InitError: the model has no input for a declared control.
    """
    signature = getattr(predictor_of(op), "signature", None)  # a script's own may have none
    if signature is None:  # for example a model on another machine
        return []
    shapes = {spec.name: spec.shape for spec in signature.inputs}
    names = [control.name for control in op.pipeline_config.sequence.controls]
    for name in names:
        if name not in shapes:
            raise InitError(
                f"unable to load model '{op.name}', configuration specified sequence control "
                f"'{name}', but model does not provide that input"
            )
    return [name for name in names if len(shapes[name] or ()) == 1]


def _fetch_states(op: Op, states: SlotStates) -> None:
    """Let the default `process` fetch the outputs of a model that are states. Raises InitError."""
    fed, fetched = list(op.right_feed_names), list(op._fetch_names or op.right_fetch_names)
    for spec in states.specs:
        if spec.input_name not in fed:
            raise InitError(
                f"state '{spec.input_name}' is not a valid state name. The model of Op {op.name!r} "
                f"has the inputs {', '.join(fed)}"
            )
        if spec.output_name not in fetched:
            fetched.append(spec.output_name)
    op._fetch_names = fetched
