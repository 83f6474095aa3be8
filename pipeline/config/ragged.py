"""`op.<name>.allow_ragged_batch`, `batch_input`, `batch_output`: batches of arrays that differ in
shape, in Triton's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

Names = Annotated[tuple[str, ...], Meta(min_length=1)]
Source = Annotated[tuple[str, ...], Meta(min_length=1, max_length=1)]

BatchInputKind = Literal[
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
]


class BatchInputConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.batch_input`: an array that says how an input of a batch is made up."""

    kind: Annotated[BatchInputKind, "What it says of the requests' arrays: sizes, or shapes."]
    target_name: Annotated[Names, "Names by which `process` is fed it."]
    data_type: Annotated[Literal["TYPE_INT32", "TYPE_FP32"], "Type of its numbers."]
    source_input: Annotated[Source, "The input that it is about."]


class BatchOutputConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.batch_output`: a flat output that is cut by the shapes of an input."""

    kind: Annotated[
        Literal["BATCH_SCATTER_WITH_INPUT_SHAPE"], "Each request gets the shape of its input."
    ] = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    target_name: Annotated[Names, "Names by which `process` returns it."]
    source_input: Annotated[Source, "The input whose shapes it has."]


def fault_of_ragged(
    inputs: Sequence[str],
    batch_inputs: Sequence[BatchInputConfig],
    batch_outputs: Sequence[BatchOutputConfig],
) -> str:
    """Return what is wrong with the names of an Op's ragged batches, by its key; "": nothing."""
    made = Counter(name for each in batch_inputs for name in each.target_name)
    cut = Counter(name for each in batch_outputs for name in each.target_name)
    for key, counts in (("batch_input", made), ("batch_output", cut)):
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            return f"{key}: {twice[0]!r} is there twice"
    both = [name for name in inputs if name in made]
    return f"batch_input: {both[0]!r} is sent by callers: allow_ragged_batch has it" if both else ""
