"""Lists of `op.<name>.sequence`: states that are kept of a sequence, controls that are fed."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Dims = tuple[Annotated[int, Meta(ge=-1)], ...]


class InitialStateConfig(Struct, frozen=True, kw_only=True):
    """`initial_state` of a state: what it is before the first step of a sequence."""

    name: Annotated[str, "What it is called, in errors."] = ""
    data_type: Annotated[str, "That of the state."] = ""
    dims: Annotated[Dims, "Those of the state, each with a size."] = ()
    zero_data: Annotated[bool | None, "Given: it is zeros, or empty strings."] = None
    data_file: Annotated[str | None, "File of its bytes, in the folder initial_state."] = None


class StateConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.sequence.state`: an array that a worker keeps from step to step of a sequence."""

    input_name: Annotated[str, "Name by which `process` is fed it."] = ""
    output_name: Annotated[str, "Name by which `process` returns it."] = ""
    data_type: Annotated[str, "TYPE_FP32 or FP32, and so on; TYPE_STRING: text."] = ""
    dims: Annotated[Dims, "Its shape for one request; -1: of any size, at first 1."] = ()
    initial_state: Annotated[
        tuple[InitialStateConfig, ...], "What it is at first; absent: zeros."
    ] = ()
    use_same_buffer_for_input_output: Annotated[
        bool, "What `process` writes into the array that it is fed is kept."
    ] = False
    use_growable_memory: Annotated[bool, "Not there on processors: an error."] = False


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
    """Words of a control; of the pairs one, which has what stands for False and for True."""

    kind: Annotated[
        ControlKind | None, "start, end, ready: yes or no; corrid: the id of the sequence."
    ] = None
    int32_false_true: Annotated[tuple[int, ...], "As INT32."] = ()
    fp32_false_true: Annotated[tuple[float, ...], "As FP32."] = ()
    bool_false_true: Annotated[tuple[bool, ...], "As BOOL."] = ()
    data_type: Annotated[str, "Of a corrid: UINT64, INT64, UINT32, INT32 or STRING."] = ""


class ControlConfig(ControlValuesConfig, frozen=True, kw_only=True):
    """`op.<name>.sequence.controls`: what `process` is told of a sequence in an array."""

    name: Annotated[str, "Name by which `process` is fed it."] = ""
    control: Annotated[
        tuple[ControlValuesConfig, ...], "The same in Triton's form, in a list."
    ] = ()
