"""SlotStates: what is kept of each slot, and that arrays are fed again without a copy."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from pipeline.config.sequences import InitialStateConfig, StateConfig
from pipeline.data import SequenceStep
from pipeline.engine.sequences.states import SlotStates, specs_of
from pipeline.errors import InitError, PayloadTypeError


def states_of(**keys: Any) -> SlotStates:
    fields: dict[str, Any] = {"data_type": "FP32", "dims": (2,), **keys}
    return SlotStates("op", specs_of([StateConfig(input_name="s", output_name="t", **fields)], []))


def begin(states: SlotStates, *slots: int, start: bool = True) -> None:
    states.begin([SequenceStep(id=f"s{slot}", start=start, slot=slot) for slot in slots])


def rows(*values: float) -> np.ndarray:
    return np.array([[value, value] for value in values], np.float32)


def step(states: SlotStates, *slots: int) -> np.ndarray:
    """Feed a call, which returns what it was fed, and one more."""
    fed = states.feed(slots)["s"]
    states.keep(slots, states.returned({"t": fed + 1}, len(slots)))
    return fed


def test_rows_that_were_together_are_fed_again_without_a_copy() -> None:
    states = states_of()
    begin(states, 0, 1, 2)
    step(states, 0, 1, 2)
    kept = rows(1, 2, 3)
    states.keep((0, 1, 2), {"s": kept})
    for slots in ((0, 1, 2), (1, 2), (2,)):
        fed = states.feed(slots)["s"]
        assert np.shares_memory(fed, kept)
        assert fed.tolist() == kept[list(slots)].tolist()
        assert not fed.flags.writeable
    others = states.feed((2, 1))["s"]
    assert not np.shares_memory(others, kept)
    assert others.tolist() == rows(3, 2).tolist()


def test_an_idle_slot_does_not_hold_a_whole_batch_in_memory() -> None:
    states, busy, idle = states_of(), list(range(19)), range(19, 2000)
    begin(states, *busy, *idle)
    made: list[weakref.ref[np.ndarray]] = []
    for count, slot in enumerate(idle):
        slots = [*busy, slot]
        fed = states.feed(slots)["s"]
        assert fed[:, 0].tolist() == [count] * len(busy) + [0]
        array = fed + 1
        made.append(weakref.ref(array))
        states.keep(slots, states.returned({"t": array}, len(slots)))
        del array, fed
    assert len(slots) * sum(ref() is not None for ref in made) < 5 * len(idle)
    assert states.feed([idle[0]])["s"].tolist() == rows(1).tolist()


def test_a_slot_has_no_state_of_its_previous_sequence() -> None:
    states = states_of()
    begin(states, 0)
    step(states, 0)
    assert states.feed((0,))["s"].tolist() == rows(1).tolist()
    begin(states, 0)
    assert states.feed((0,))["s"].tolist() == rows(0).tolist()
    step(states, 0)
    states.begin([SequenceStep(id="other", slot=0)])  # whose START did not come here
    assert states.feed((0,))["s"].tolist() == rows(0).tolist()


def test_a_filler_row_is_initial_and_is_not_saved() -> None:
    states = states_of()
    begin(states, 1)
    assert step(states, None, 1).tolist() == rows(0, 0).tolist()  # type: ignore[arg-type]
    assert states.feed((None, 1))["s"].tolist() == rows(0, 1).tolist()


def test_a_copied_state_can_be_restored_in_another_worker() -> None:
    for keys in ({}, {"batch_axis": 1}, {"use_same_buffer_for_input_output": True}):
        states, other = states_of(**keys), states_of(**keys)
        begin(states, 0, 1)
        step(states, 0, 1)
        step(states, 1)
        copied = states.copy(1)
        begin(other, 5)
        other.restore(5, copied)
        assert other.feed((5,))["s"].ravel().tolist() == [2, 2]
        assert copied["s"].flags.c_contiguous
        assert other.copy(0) == {}


def test_a_write_into_a_shared_buffer_does_not_change_a_copy() -> None:
    states = states_of(use_same_buffer_for_input_output=True)
    begin(states, 0)
    fed = states.feed((0,))["s"]
    fed += 1
    states.keep((0,), {"s": fed})
    copied = states.copy(0)
    states.feed((0,))["s"][:] = 9
    assert copied["s"].tolist() == rows(1).tolist()
    assert states_of(use_same_buffer_for_input_output=True).feed((0,))["s"].tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (rows(1, 2, 3), r"of shape \[3, 2\], declared for 2 requests is \[2, 2\]"),
        (np.zeros(2), r"of shape \[2\]"),
        (np.zeros((2, 2), complex), "of dtype complex128, declared is float32"),
        (None, r"of shape \[\]"),
    ],
)
def test_a_state_must_match_its_declaration(value: Any, text: str) -> None:
    with pytest.raises(PayloadTypeError, match=f"returned state 't' {text}"):
        states_of().returned({"t": value}, 2)


def test_numbers_are_cast_within_their_kind_if_they_fit() -> None:
    assert states_of().returned({"t": np.zeros((1, 2))}, 1)["s"].dtype == np.float32
    small = states_of(data_type="INT8")
    assert small.returned({"t": np.array([[1, -1]])}, 1)["s"].dtype == np.int8
    with pytest.raises(PayloadTypeError, match="of dtype int64, declared is int8"):
        small.returned({"t": np.array([[1, 300]])}, 1)


def test_a_file_is_read_in_the_dtype_of_its_state(tmp_path: Any) -> None:
    (tmp_path / "f").write_bytes(np.array([1, 2, 3], "<f4").tobytes())
    initial = (InitialStateConfig(name="i", data_file="f"),)
    state = StateConfig(
        input_name="s", output_name="t", data_type="FP32", dims=(2,), initial_state=initial
    )
    (spec,) = specs_of([state], [tmp_path / "none", tmp_path])
    assert spec.initial.tolist() == [[1, 2]]  # what is longer is cut
    with pytest.raises(InitError, match="data_file f is not in"):
        specs_of([state], [tmp_path / "none"])
