"""Lists of `op.<name>.sequence`: states of a sequence, and controls."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipeline.data import DATATYPES
from pipeline.errors import ConfigError

Dims = tuple[Annotated[int, Meta(ge=-1)], ...]


class InitialStateConfig(Struct, frozen=True, kw_only=True):
    """`initial_state` of a state: what it is before the first step of a sequence."""

    name: Annotated[str | None, "Name of the initial state; only checked."] = None
    data_type: Annotated[str | None, "Type of the initial state; absent: that of the state."] = None
    dims: Annotated[
        Dims | None, "Shape of the initial state, without -1; absent: that of the state."
    ] = None
    zero_data: Annotated[bool | None, "The state begins with zeros, or empty strings."] = None
    data_file: Annotated[
        str | None,
        "File with the bytes of the state, in initial_state/ of the current folder or beside the "
        "model, or a path.",
    ] = None


class StateConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.sequence.state`: an array that a worker keeps from step to step of a sequence."""

    input_name: Annotated[str, "Name of the array in the input of process()."]
    output_name: Annotated[str, "Name of the array in the output of process()."]
    data_type: Annotated[
        str, "Type: FP32, INT64, BOOL and so on, or STRING; the prefix TYPE_ is allowed."
    ]
    dims: Annotated[Dims, "Shape for one request; -1: any size, 1 at the start."]
    batch_axis: Annotated[
        int,
        Meta(ge=-1),
        "Axis of the array along which requests are stacked; -1: none, each request runs alone.",
    ] = 0
    initial_state: Annotated[
        tuple[InitialStateConfig, ...], "Value before the first step; absent: zeros."
    ] = ()
    use_same_buffer_for_input_output: Annotated[
        bool, "Keep what process() writes into its input array."
    ] = False
    use_growable_memory: Annotated[bool, "Not supported: True is an error at the start."] = False


ControlKind = Literal[
    "start",
    "end",
    "ready",
    "corrid",
    "CONTROL_SEQUENCE_START",
    "CONTROL_SEQUENCE_END",
    "CONTROL_SEQUENCE_READY",
    "CONTROL_SEQUENCE_CORRID",
]


class ControlValuesConfig(Struct, frozen=True, kw_only=True):
    """Values of a control: one of the pairs, with the values for False and True."""

    kind: Annotated[
        ControlKind | None,
        "What the control says: start, end, ready: yes or no; corrid: the id of the sequence.",
    ] = None
    int32_false_true: Annotated[tuple[int, ...], "INT32 values for no and yes."] = ()
    fp32_false_true: Annotated[tuple[float, ...], "FP32 values for no and yes."] = ()
    bool_false_true: Annotated[tuple[bool, ...], "BOOL values for no and yes."] = ()
    data_type: Annotated[str, "Type of a corrid: UINT64, INT64, UINT32, INT32 or STRING."] = ""


class ControlConfig(ControlValuesConfig, frozen=True, kw_only=True):
    """`op.<name>.sequence.controls`: arrays that describe a sequence to `process`."""

    name: Annotated[str, "Name of the array in the input of process()."] = ""
    control: Annotated[
        tuple[ControlValuesConfig, ...], "The same settings in Triton's form, as a list."
    ] = ()


def datatype(given: str) -> str:
    """Return the v2 protocol's name of a `data_type`; an unknown one unchanged."""
    name = given.upper().removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def fault_of_states(states: Iterable[StateConfig]) -> str:
    """Return the fault of an Op's states, in Triton's words if it has some; "" without one."""
    inputs: set[str] = set()
    outputs: set[str] = set()
    for state in states:
        if not state.input_name or not state.output_name:
            return "state: expected an input_name and an output_name, found an empty one"
        if state.input_name in inputs:
            return f"State input name '{state.input_name}' specified more than once."
        if state.output_name in outputs:
            return f"State output name '{state.output_name}' specified more than once."
        if datatype(state.data_type) not in DATATYPES:
            known = ", ".join(sorted(DATATYPES))
            return (
                f"state '{state.input_name}': data_type '{state.data_type}' is not one of {known}"
            )
        if state.batch_axis > len(state.dims):
            return f"state '{state.input_name}': batch_axis is beyond its dims"
        if fault := _fault_of_buffers(state) or _fault_of_initial(state):
            return fault
        inputs.add(state.input_name)
        outputs.add(state.output_name)
    return ""


def _fault_of_buffers(state: StateConfig) -> str:
    if not state.use_growable_memory:
        return ""
    if not state.use_same_buffer_for_input_output:
        return (
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state "
            f"input name '{state.input_name}'."
        )
    return (
        "'use_growable_memory' can only work with KIND_GPU model instances right now. Please "
        "either change the instance type to KIND_GPU or set 'use_growable_memory' to false for "
        f"state input '{state.input_name}'."
    )


def _fault_of_initial(state: StateConfig) -> str:
    name, count = state.input_name, len(state.initial_state)
    if count > 1:
        return (
            f"initial_state field for state input '{name}' must contain exactly one or zero "
            f"element. Found '{count}' elements."
        )
    if not count:
        return ""
    initial = state.initial_state[0]
    kind = initial.data_type
    if kind is not None and datatype(kind) != datatype(state.data_type):
        return (
            f"The data type used for 'initial_state' field of state '{name}' does not match the "
            "state data type."
        )
    if initial.name == "":
        return f"Field 'name' must be set when using initial_state for state input '{name}'."
    if fault := _fault_of_dims(name, initial.dims, state.dims):
        return fault
    if (initial.zero_data is None) == (initial.data_file is None):
        return f"initial_state setting expects state'{name}' to have state_data set"
    return ""


def _fault_of_dims(name: str, initial: Dims | None, declared: Dims) -> str:
    dims = declared if initial is None else initial
    if len(dims) != len(declared):
        return (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            f"for state input '{name}'. {len(dims)} != {len(declared)}"
        )
    for dim, expected in zip(dims, declared, strict=True):
        if dim == -1:
            return (
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if expected not in (-1, dim):
            return (
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim "
                f"description. {dim} != {expected}"
            )
    return ""


# Controls ---------------------------------------------------------------------------------------


_PAIRS = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}
_OF_IDS = ("UINT64", "INT64", "UINT32", "INT32", "STRING")


class Kind(enum.Enum):
    """Kinds of controls, by Triton's names."""

    START = "CONTROL_SEQUENCE_START"
    END = "CONTROL_SEQUENCE_END"
    READY = "CONTROL_SEQUENCE_READY"
    CORRID = "CONTROL_SEQUENCE_CORRID"


class Control(Struct, frozen=True):
    """One control of an Op.

    Args:
        name: name of the array in the input of `process`.
        datatype: type of the array, Triton's name without "TYPE_".
        values: values for False and True; empty for the id.
    """

    name: str
    kind: Kind
    datatype: str
    values: tuple[int | float | bool, ...] = ()


def controls_of(op_name: str, configs: Sequence[ControlConfig]) -> tuple[Control, ...]:
    """Return the controls in an Op's configuration.

    Raises:
        ConfigError: the first fault, in Triton's words.
    """
    controls: list[Control] = []
    names: set[str] = set()
    for config in configs:
        if not config.name:
            raise ConfigError(f"sequence batching control tensor must have a name for {op_name}")
        if config.name in names:
            raise ConfigError(_serves_several(config.name, op_name))
        names.add(config.name)
        listed = [_control(config.name, kind, values, op_name) for kind, values in _said(config)]
        if not listed:
            raise ConfigError(
                f"sequence batching control tensor '{config.name}' must specify a kind for "
                f"{op_name}: start, end, ready or corrid"
            )
        controls += listed
        for control in listed:
            if sum(other.kind is control.kind for other in controls) > 1:
                raise ConfigError(
                    f"sequence batching specifies multiple {control.kind.value} tensors for "
                    f"{op_name}"
                )
        if len(listed) > 1:
            raise ConfigError(_serves_several(config.name, op_name))
    return tuple(controls)


def _serves_several(name: str, op_name: str) -> str:
    return (
        f"sequence batching control tensor '{name}' is specified for multiple control kinds for "
        f"{op_name}"
    )


def _said(config: ControlConfig) -> Iterator[tuple[Kind, ControlValuesConfig]]:
    for values in (config, *config.control):
        if values.kind is not None:
            short = values.kind.removeprefix("CONTROL_SEQUENCE_").upper()
            yield Kind[short], values


def _control(name: str, kind: Kind, config: ControlValuesConfig, op_name: str) -> Control:
    given = {pair: getattr(config, pair) for pair in _PAIRS if getattr(config, pair)}
    alternatives = "'int32_false_true', 'fp32_false_true'"
    if kind is Kind.CORRID:
        if given:
            raise ConfigError(
                f"sequence batching must not specify either {alternatives} or 'bool_false_true' "
                f"for {kind.value} for {op_name}"
            )
        return Control(name, kind, _datatype_of_id(kind, config.data_type, op_name))
    if not given:
        raise ConfigError(
            f"sequence batching must specify either {alternatives} or 'bool_false_true' for "
            f"{kind.value} for {op_name}"
        )
    if len(given) > 1:
        raise ConfigError(
            f"sequence batching specifies more than one from {alternatives} and 'bool_false_true' "
            f"for {kind.value} for {op_name}"
        )
    ((pair, values),) = given.items()
    if len(values) != 2:
        raise ConfigError(
            f"sequence batching control '{pair}' must have exactly 2 entries for {kind.value} for "
            f"{op_name}"
        )
    return Control(name, kind, _PAIRS[pair], values)


def _datatype_of_id(kind: Kind, given: str, op_name: str) -> str:
    datatype = given.removeprefix("TYPE_")
    datatype = "STRING" if datatype == "BYTES" else datatype
    if datatype not in _OF_IDS:
        raise ConfigError(
            f"unexpected data type for control {kind.value} for {op_name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
    return datatype
