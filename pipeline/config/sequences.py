"""Lists of `op.<name>.sequence`: states that are kept of a sequence, controls that are fed."""

from __future__ import annotations

from typing import Annotated

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


class ControlConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.sequence.controls`: what `process` is told of a sequence in an array."""

    name: Annotated[str, "Name by which `process` is fed it."] = ""
