"""Shapes that models have and their callers do not see (`reshape`), and ragged batches.

Facts: Triton's `reshape`, `allow_ragged_batch`, `batch_input` and `batch_output` of
model_config.proto.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.config.sections import BatchInputConfig, BatchOutputConfig
from pipeline.engine.run.ragged import Arrays, RaggedBatch
from pipeline.errors import PayloadTypeError
from pipeline.proto.inference_v2_pb2 import BatchInput, DataType, ModelConfig

_ANY = -1

Dims = tuple[int, ...]


class Reshaping(msgspec.Struct, frozen=True):
    """Shapes of the tensors that have `reshape`: which each of them has, and gets.

    Args:
        skip: dimensions before these: 1 for the batch, if the model batches.
        inputs: from `dims` to the model's own shape.
        outputs: from the model's own shape to `dims`.
    """

    skip: int = 0
    inputs: dict[str, tuple[Dims, Dims]] = {}
    outputs: dict[str, tuple[Dims, Dims]] = {}

    def fed(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return inputs in the model's own shapes. Raises PayloadTypeError."""
        return self._reshaped(arrays, self.inputs) if self.inputs else arrays

    def answered(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return outputs in the shapes that callers expect.

        Raises PayloadTypeError: an output has not the elements for it.
        """
        return self._reshaped(arrays, self.outputs) if self.outputs else arrays

    def _reshaped(
        self, arrays: Mapping[str, Any], shapes: Mapping[str, tuple[Dims, Dims]]
    ) -> dict[str, Any]:
        names = shapes.keys() & arrays.keys()
        return {
            **arrays,
            **{name: reshaped(name, self.skip, *shapes[name], arrays[name]) for name in names},
        }


def reshaped(name: str, skip: int, source: Dims, target: Dims, value: Any) -> Any:
    """Return a tensor of the dimensions `source` as one of `target`; those before `skip` stay.

    Raises PayloadTypeError: it has not the elements for it.
    """
    array = np.asarray(value)
    sizes = array.shape[skip:]
    free = iter([size for size, dim in zip(sizes, source, strict=False) if dim == _ANY])
    sized = [next(free, _ANY) if dim == _ANY else dim for dim in target]
    shape = [*array.shape[:skip], *sized]
    try:
        return array.reshape(shape)
    except ValueError:
        raise PayloadTypeError(
            f"{name!r} has the shape {list(array.shape)}, which cannot become {shape}"
        ) from None


def reshaping_of(config: ModelConfig, scalars: Collection[str] = ()) -> Reshaping:
    """Return what a configuration says of its tensors' shapes.

    Args:
        scalars: inputs of rank 0, whose configured dims of 1 have no `reshape`.
    """
    ones = {name: ((1,), ()) for name in maybe_scalars(config) if name in scalars}
    return Reshaping(
        1 if config.max_batch_size > 0 else 0,
        ones
        | {
            tensor.name: (tuple(tensor.dims), tuple(tensor.reshape.shape))
            for tensor in config.input
            if tensor.HasField("reshape")
        },
        {
            tensor.name: (tuple(tensor.reshape.shape), tuple(tensor.dims))
            for tensor in config.output
            if tensor.HasField("reshape")
        },
    )


def maybe_scalars(config: ModelConfig) -> list[str]:
    """Return the inputs that may be scalars of the model: a configuration cannot say so."""
    if config.max_batch_size > 0:
        return []
    return [tensor.name for tensor in config.input if list(tensor.dims) == [1]]


class ModelBatch(RaggedBatch):
    """Rules of a model's ragged batches, whose tensors may have other shapes than callers see.

    Args:
        config: of a model with `max_batch_size`; complete.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            ragged_inputs(config),
            [_batch_input(entry) for entry in config.batch_input],
            [
                BatchOutputConfig(target_name=tuple(entry.target_name), source_input=_source(entry))
                for entry in config.batch_output
            ],
            {
                tensor.name: tuple(
                    tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
                )
                for tensor in config.output
            },
        )
        self._reshaping = reshaping_of(config)

    def gathered(self, feeds: Sequence[Arrays]) -> dict[str, Any]:
        return super().gathered(self._own(feeds))

    def cut(self, result: Any, feeds: Sequence[Arrays]) -> list[Any]:
        """Return the result of each request, in the shapes that callers expect."""
        parts = super().cut(result, self._own(feeds))
        return [self._reshaping.answered(part) for part in parts]

    def _own(self, feeds: Sequence[Arrays]) -> Sequence[Arrays]:
        return [self._reshaping.fed(feed) for feed in feeds]


def is_ragged(config: ModelConfig) -> bool:
    """Return whether a model is fed more, or otherwise, than the rows of its requests."""
    has_ragged = any(tensor.allow_ragged_batch for tensor in config.input)
    return has_ragged or bool(config.batch_input) or bool(config.batch_output)


def ragged_inputs(config: ModelConfig) -> frozenset[str]:
    """Return the names of the inputs whose shapes may differ in a batch."""
    return frozenset(tensor.name for tensor in config.input if tensor.allow_ragged_batch)


def _batch_input(made: BatchInput) -> BatchInputConfig:
    settings = {
        "kind": BatchInput.Kind.Name(made.kind),
        "target_name": list(made.target_name),
        "data_type": DataType.Name(made.data_type),
        "source_input": list(_source(made)),
    }
    return msgspec.convert(settings, BatchInputConfig)


def _source(made: Any) -> tuple[str, ...]:
    return tuple(made.source_input)
