"""Inputs without elements: answered by what a model declares, so that no engine is run on them.

Operators of native engines end the whole process on some of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.errors import InputError
from pipeline.predictors.base import Dim, TensorSpec
from pipeline.predictors.signature import ModelSignature


def answer_without_rows(
    signature: ModelSignature,
    arrays: Mapping[str, np.ndarray],
    names: Sequence[str],
    can_infer: bool = True,
) -> dict[str, np.ndarray] | None:
    """Return the outputs `names`, which have no elements either; None: each input has some.

    Args:
        arrays: the inputs that the model would be run on.
        can_infer: False: something about the outputs is not in their shapes.

    Raises InputError: it cannot be told of an output that it has no elements.
    """
    for array in arrays.values():  # of every batch: nothing is made for those that are usual
        if not array.size:
            break
    else:
        return None
    name = next(name for name, array in arrays.items() if not array.size)
    shapes = _output_shapes(signature, arrays, names) if can_infer else {}
    for output in names:
        if math.prod(shapes.get(output, (1,))):
            raise InputError(
                f"[{signature.model}] feed {name!r} has shape {arrays[name].shape}, no elements, "
                f"and what {output!r} is then cannot be told from the model: skip the call, or set "
                "takes_empty: true (a parameter of config.pbtxt, a key of local_service_conf) if "
                "the model can be run on nothing; some end the process"
            )
    dtypes = {spec.name: spec.dtype for spec in signature.outputs}
    return {output: np.empty(shapes[output], dtypes[output]) for output in names}


def _output_shapes(
    signature: ModelSignature, arrays: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those outputs of which every dimension is known."""
    sizes: dict[Dim, int] = {}
    for spec in signature.inputs:
        for dim, size in zip(spec.shape or (), arrays[spec.name].shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    outputs = [spec for spec in signature.outputs if spec.name in names]
    batches = all(map(_has_batch, (*signature.inputs, *outputs)))
    rows = {len(arrays[spec.name]) for spec in signature.inputs} if batches else set()
    shapes = {}
    for spec in outputs:
        dims = [dim if isinstance(dim, int) else sizes.get(dim) for dim in spec.shape or (None,)]
        if dims[0] is None and rows == {0}:
            dims[0] = 0
        known = tuple(dim for dim in dims if dim is not None)
        if len(known) == len(dims):
            shapes[spec.name] = known
    return shapes


def _has_batch(spec: TensorSpec) -> bool:
    """Return whether the first dimension may have any size, as that of a batch has."""
    return bool(spec.shape) and not isinstance((spec.shape or (0,))[0], int)
