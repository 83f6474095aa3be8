"""Checks of a configuration against the tensors of its model, with Triton's texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config.sequences import Control
from pipeline.errors import ConfigError, PayloadTypeError
from pipeline.predictors.base import Dim, TensorSpec
from pipeline.predictors.signature import ModelSignature
from pipeline.proto.inference_v2_pb2 import DataType, ModelConfig
from pipeline.proto.v2.raw import datatype_of
from pipeline.repository.op_settings import sequence_controls

_ANY = -1


def check_signature(config: ModelConfig, signature: ModelSignature) -> None:
    """Compare a configuration with its loaded model.

    Sizes that the model leaves open may have any number in the configuration.

    Raises ConfigError: the first contradiction.
    """
    controls = sequence_controls(config)
    expected = sum(not slot.optional for slot in config.input)
    expected += len(config.batch_input) + len(controls) + len(config.sequence_batching.state)
    if expected != len(signature.inputs):
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {len(signature.inputs)}"
        )
    _check_controls(config, controls, signature.inputs)
    _check_side("input", config, config.input, (*signature.inputs, *signature.options))
    _check_side("output", config, config.output, signature.outputs)


def _check_controls(
    config: ModelConfig, controls: Sequence[Control], inputs: Sequence[TensorSpec]
) -> None:
    known = {spec.name: spec for spec in inputs}
    for control in controls:
        spec = known.get(control.name)  # without one the Op does not start
        if spec is not None and f"TYPE_{control.datatype}" != (found := _type_of(spec)):
            raise ConfigError(
                f"unable to load model '{config.name}', sequence control '{control.name}', the "
                f"model expects data-type {found.removeprefix('TYPE_')} but the model "
                f"configuration specifies data-type TYPE_{control.datatype}"
            )


def _check_side(
    side: str, config: ModelConfig, slots: Sequence[Any], specs: Sequence[TensorSpec]
) -> None:
    known = {spec.name: spec for spec in specs}
    of_batch = {name for made in config.batch_output for name in made.target_name}
    for slot in slots:
        spec = known.get(slot.name)
        if spec is None:
            raise ConfigError(
                f"unexpected inference {side} '{slot.name}', allowed {side}s are: "
                f"{', '.join(sorted(known))}"
            )
        given, found = DataType.Name(slot.data_type), _type_of(spec)
        if given != found:
            raise ConfigError(
                f"unable to load model '{config.name}', configuration expects datatype {given} for "
                f"{side} '{slot.name}', model provides {found}"
            )
        if side == "input" and slot.allow_ragged_batch:
            _check_ragged(config, spec)
        elif slot.name not in of_batch:
            dims = slot.reshape.shape if slot.HasField("reshape") else slot.dims
            _check_dims(config, spec, list(dims))


def _type_of(spec: TensorSpec) -> str:
    """Return the type in the words of a configuration; of one that it lacks, numpy's name."""
    try:
        name = datatype_of(spec.dtype)
    except PayloadTypeError:
        return str(spec.dtype)
    return "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"


def _check_ragged(config: ModelConfig, spec: TensorSpec) -> None:
    if spec.shape is not None and _sizes(spec.shape) != [_ANY]:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects model provides input "
            f"with shape [-1]  for ragged input '{spec.name}', model provides "
            f"{_text(_sizes(spec.shape))}"
        )


def _check_dims(config: ModelConfig, spec: TensorSpec, dims: list[int]) -> None:
    if spec.shape is None:  # the file does not say
        return
    sizes = _sizes(spec.shape)
    if not sizes:
        if any(dim != 1 for dim in dims):
            raise ConfigError(
                f"unable to load model '{config.name}', scalar tensor '{spec.name}', should only "
                "provide 1 in the model configuration when the model doesn't support batching. "
                f"Model configuration provided: {_text(dims)}."
            )
        return
    where = f"model '{config.name}', tensor '{spec.name}': "
    batches = config.max_batch_size > 0
    if batches and sizes[0] != _ANY:
        raise ConfigError(
            f"{where}for the model to support batching the shape should have at least 1 dimension "
            f"and the first dimension must be -1; but shape expected by the model is {_text(sizes)}"
        )
    whole = [_ANY, *dims] if batches else dims
    pairs = zip(sizes, whole, strict=False)
    if len(sizes) == len(whole) and all(size in (_ANY, dim) for size, dim in pairs):
        return
    shape = f"shape {_text(whole)}"
    if batches:
        shape = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete {shape}"
        )
    raise ConfigError(
        f"{where}the model expects {len(sizes)} dimensions (shape {_text(sizes)}) but the model "
        f"configuration specifies {len(whole)} dimensions ({shape})"
    )


def _sizes(shape: Sequence[Dim]) -> list[int]:
    return [dim if isinstance(dim, int) else _ANY for dim in shape]


def _text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
