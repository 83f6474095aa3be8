"""What a configuration may say of the states of sequences, and in which words it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.errors import ConfigError

STATE = {"input_name": "in", "output_name": "out", "data_type": "TYPE_INT32", "dims": [2, -1]}
FIRST = {"name": "first", "data_type": "TYPE_INT32", "dims": [2, 3], "zero_data": True}


def read(*states: Any) -> Any:
    sequence = {"strategy": "direct", "state": list(states)}
    config = load_config(yml_dict={"rpc_port": 18070, "op": {"m": {"sequence": sequence}}})
    return resolve_op("m", {}, config).sequence.state


def with_initial_state(**initial: Any) -> dict[str, Any]:
    return {**STATE, "initial_state": {**FIRST, **initial}}


def test_states_are_read() -> None:
    first, second = read({**STATE, "initial_state": [FIRST]}, {**STATE, **second_state()})
    assert (first.input_name, first.dims, first.initial_state[0].dims) == ("in", (2, -1), (2, 3))
    assert (second.data_type, second.batch_axis, second.initial_state) == ("STRING", 1, ())


def second_state() -> dict[str, Any]:
    return {"input_name": "b", "output_name": "c", "data_type": "STRING", "batch_axis": 1}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            {**STATE, "initial_state": [FIRST, FIRST]},
            "initial_state field for state input 'in' must contain exactly one or zero element. "
            "Found '2' elements.",
        ),
        (
            with_initial_state(data_type="TYPE_FP32"),
            "The data type used for 'initial_state' field of state 'in' does not match the state "
            "data type.",
        ),
        (
            with_initial_state(name=""),
            "Field 'name' must be set when using initial_state for state input 'in'.",
        ),
        (
            with_initial_state(dims=[2]),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            "for state input 'in'. 1 != 2",
        ),
        (
            with_initial_state(dims=[2, -1]),
            "'initial_state' field for state input name 'in' contains variable dimensions.",
        ),
        (
            with_initial_state(dims=[3, 3]),
            "'initial_state' dim for input name 'in' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            with_initial_state(zero_data=None),
            "initial_state setting expects state'in' to have state_data set",
        ),
        (
            {**STATE, "use_growable_memory": True},
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state "
            "input name 'in'.",
        ),
        (
            {
                **STATE,
                "use_growable_memory": True,
                "use_same_buffer_for_input_output": True,
            },
            "'use_growable_memory' can only work with KIND_GPU model instances right now.",
        ),
        ({**STATE, "data_type": "TYPE_INT3"}, "data_type 'TYPE_INT3' is not one of BF16, BOOL,"),
        ({**STATE, "input_name": ""}, "expected an input_name and an output_name"),
        ({**STATE, "batch_axis": 3}, "state 'in': batch_axis is beyond its dims"),
        ({**STATE, "dims": [-2]}, "dims: expected list of int >= -1"),
        ("total", "expected a mapping"),
    ],
)
def test_a_state_that_cannot_be_is_refused(state: Any, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(state)
    assert text in str(refused.value)


def test_names_of_states_are_there_once() -> None:
    for name in ("input", "output"):
        with pytest.raises(ConfigError, match=f"State {name} name '.*' specified more than once"):
            read(STATE, {**STATE, **second_state(), f"{name}_name": STATE[f"{name}_name"]})


def test_zero_data_needs_no_dims_and_type() -> None:
    (state,) = read({**STATE, "dims": [2], "initial_state": {"zero_data": True}})
    assert state.initial_state[0].dims is None


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"sequence": {"strategy": "direct", "checkpoint": True}}, "declared as state"),
        (
            {"batching": "iterative", "sequence": {"state": [STATE], "checkpoint": True}},
            "with batching: iterative each request is a sequence of its own",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_is_refused(keys: Any, text: str) -> None:
    config = load_config(yml_dict={"rpc_port": 18070, "op": {"m": keys}})
    with pytest.raises(ConfigError, match=f"op.m.sequence: checkpoint: .*{text}"):
        resolve_op("m", {}, config)
