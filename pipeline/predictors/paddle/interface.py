"""Inputs and outputs of a Paddle model: names and aliases, types, LoD.

`serving_server_conf.prototxt`, which Paddle Serving writes next to a model, has the clients' names.
Shapes and types come from the program instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from pipeline.errors import InitError, InputError
from pipeline.predictors.base import TEXT, TensorSpec
from pipeline.predictors.model_conf import ModelConf, Var
from pipeline.predictors.paddle.program import Program
from pipeline.predictors.signature import LOD, ModelSignature, are_offsets
from pipeline.proto.lists import as_array

_LOGGER = logging.getLogger(__name__)

_FED = frozenset(
    np.dtype(kind)
    for kind in ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "O")
)
"""Types that the handles of `paddle.inference` accept: numpy's, and text."""

_AS_TENSORS = frozenset(
    np.dtype(kind) for kind in (np.int16, ml_dtypes.bfloat16, np.complex64, np.complex128)
)
"""Types that only tensors carry: a handle refuses them, or returns their bytes as float32."""


@dataclass(frozen=True, slots=True)
class PaddleInterface:
    """The callers' names with the model's names; `fetches` also has the model's names as keys.

    `wants_lod`: an input is a batch of sequences, which the model may not run without offsets.
    `row_counts` maps an output of boxes, by any of its names, to the model's name of the output
    with the number of boxes per sample. `needs_tensors`: some types need tensors, not handles.
    """

    signature: ModelSignature
    feeds: Mapping[str, str]
    fetches: Mapping[str, str]
    wants_lod: bool
    needs_tensors: bool = False
    row_counts: Mapping[str, str] = field(default_factory=dict)

    def by_alias(self, feed: Any) -> Any:
        """Return `feed` with aliases in place of the model's names, as in the predecessor."""
        if not isinstance(feed, Mapping) or all(alias in feed for alias in self.feeds):
            return feed
        renamed = dict(feed)
        for alias, name in self.feeds.items():
            for suffix in ("", LOD):
                if alias + suffix not in feed and name + suffix in feed:
                    renamed[alias + suffix] = feed[name + suffix]
        return renamed


def interface(
    model: str,
    program: Program,
    inputs: Sequence[str],
    outputs: Sequence[str],
    conf: ModelConf | None = None,
    fetch_list: Sequence[str] | None = None,
) -> PaddleInterface:
    """Combine the program, the loaded model and the prototxt.

    Args:
        model: name of the model in error texts.
        inputs, outputs: the loaded model's names.
        conf: the prototxt; None without one: callers use the model's names.

    Raises InitError: the prototxt belongs to another model, Paddle does not accept an input's type,
    or `fetch_list` has an unknown name.
    """
    feeds = _aliases(model, "feed_var", inputs, conf.feeds if conf else ())
    fetches = _aliases(model, "fetch_var", outputs, conf.fetches if conf else ())
    known = {**{name: name for name in outputs}, **fetches}
    signature = ModelSignature(
        model,
        [_input(model, program, alias, name) for alias, name in feeds.items()],
        [_output(program, alias, name) for alias, name in known.items()],
        list(fetch_list or fetches),
        checks_shapes=False,  # Paddle accepts more shapes than the program declares
    )
    counts = {
        alias: program.row_counts[name]
        for alias, name in known.items()
        if name in program.row_counts
    }
    wants_lod = any(name in program.vars and program.vars[name].has_lod for name in inputs)
    if conf is not None:
        wants_lod = wants_lod or any(var.is_lod for var in conf.feeds)
    needs_tensors = _needs_tensors(signature, wants_lod)
    return PaddleInterface(signature, feeds, known, wants_lod, needs_tensors, counts)


def _needs_tensors(signature: ModelSignature, wants_lod: bool) -> bool:
    """Return whether a type needs tensors. Raises InitError: the model does not allow them."""
    specs = (*signature.inputs, *signature.outputs)
    odd = next((spec for spec in specs if spec.dtype in _AS_TENSORS), None)
    if odd and (wants_lod or any(spec.dtype == TEXT for spec in specs)):
        raise InitError(
            f"[{signature.model}] {odd.name!r} is {odd.dtype}, which Paddle takes beside neither "
            "text nor offsets of sequences: export the model with float32 there"
        )
    return odd is not None


def _aliases(
    model: str, block: str, names: Sequence[str], given: Sequence[Var]
) -> Mapping[str, str]:
    """Return the model's name of each alias."""
    if not given:
        return {name: name for name in names}
    if all(var.name in names for var in given) and (
        block == "fetch_var" or len(given) == len(names)
    ):
        return {var.alias: var.name for var in given}
    if block == "fetch_var" and len(given) == len(names) == 1:
        # Older exporters wrote a name that the saved program lacks; with a single output it is
        # clear which one is meant.
        _LOGGER.warning(
            "[%s] serving_server_conf.prototxt: the model's output is %r and not %r; it is "
            "answered as %r",
            model,
            names[0],
            given[0].name,
            given[0].alias,
        )
        return {given[0].alias: names[0]}
    raise InitError(
        f"[{model}] serving_server_conf.prototxt: {block} names {[var.name for var in given]}, "
        f"but the model has {list(names)}: write the model's names as name, yours as alias_name, "
        "or remove the file"
    )


def _input(model: str, program: Program, alias: str, name: str) -> TensorSpec:
    var = program.vars.get(name)
    dtype = var.dtype if var else None
    if var is None or dtype is None or dtype not in _FED | _AS_TENSORS:
        kind = "a type that numpy has no name for" if dtype is None else str(dtype)
        raise InitError(
            f"[{model}] the input {name!r} is {kind}, which Paddle cannot be fed: export the "
            "model with float32, int32 or int64 there"
        )
    return TensorSpec(alias, dtype, var.shape)


def _output(program: Program, alias: str, name: str) -> TensorSpec:
    var = program.vars.get(name)
    if var is None or var.dtype is None:
        return TensorSpec(alias, np.dtype(np.float32), None)
    return TensorSpec(alias, var.dtype, var.shape)


def offsets(model: str, name: str, value: Any, rows: int) -> list[list[int]]:
    """Return the LoD of one input in Paddle's form: one level.

    Args:
        name: name of the input.
        value: the start of each sequence, and finally `rows`: ints in a list or an array of any
            shape.
        rows: number of rows of the input.

    Raises InputError: `value` is not a LoD; with a wrong one Paddle reads beyond the array.
    """
    try:
        array = as_array(value)
    except ValueError:  # lists of lists of unequal length
        array = np.empty(0, object)
    flat = array.reshape(-1)
    if not are_offsets(flat, rows):
        raise InputError(
            f"[{model}] feed {name + LOD!r} must be the starts of the sequences in {name!r}, "
            f"ascending, from 0 to its {rows} rows, but get {str(value)[:100]}"
        )
    return [flat.tolist()]
