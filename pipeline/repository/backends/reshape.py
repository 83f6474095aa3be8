"""`reshape` of tensors: a model has other shapes than its callers see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import PayloadTypeError
from pipeline.proto.inference_v2_pb2 import ModelConfig

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
        found = dict(arrays)
        for name in shapes.keys() & arrays.keys():
            array, (given, wanted) = np.asarray(arrays[name]), shapes[name]
            sizes = array.shape[self.skip :]
            free = iter([size for size, dim in zip(sizes, given, strict=False) if dim == _ANY])
            sized = [next(free, _ANY) if dim == _ANY else dim for dim in wanted]
            shape = [*array.shape[: self.skip], *sized]
            try:
                found[name] = array.reshape(shape)
            except ValueError:
                raise PayloadTypeError(
                    f"{name!r} has the shape {list(array.shape)}, which cannot become {shape}"
                ) from None
        return found


def reshaping_of(config: ModelConfig) -> Reshaping:
    """Return what a configuration says of its tensors' shapes."""
    return Reshaping(
        1 if config.max_batch_size > 0 else 0,
        {
            each.name: (tuple(each.dims), tuple(each.reshape.shape))
            for each in config.input
            if each.HasField("reshape")
        },
        {
            each.name: (tuple(each.reshape.shape), tuple(each.dims))
            for each in config.output
            if each.HasField("reshape")
        },
    )
