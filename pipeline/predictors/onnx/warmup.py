"""The run with zeros that a model makes when it is loaded, so that no request pays for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.predictors.base import TEXT, TensorSpec
from pipeline.predictors.onnx.binding import Run
from pipeline.predictors.onnx.errors import brief
from pipeline.predictors.signature import ModelSignature

_LOGGER = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]


def warm_up(run: Run, signature: ModelSignature, usual_shapes: Shapes) -> bool:
    """Run the model once on zeros, or empty text; say whether it ran.

    A failure is a warning and no more: zeros are our guess, and a model may rightly refuse what
    no client would send (an index into an empty table, a sampling rate of 0).

    Args:
        usual_shapes: input name to shape, where known: `opt_input_shape` of the Op's
            `set_dynamic_shape_info`.
    """
    shapes = warm_up_shapes(signature.inputs, usual_shapes)
    unknown = [spec.name for spec in signature.inputs if spec.name not in shapes]
    if unknown:
        _LOGGER.info(
            "[%s] no warm-up: how large %s is cannot be told from the model; opt_input_shape of "
            "set_dynamic_shape_info can say it",
            signature.model,
            ", ".join(unknown),
        )
        return False
    if any(0 in shape for shape in shapes.values()):
        return False  # what has no elements reaches no engine unasked: see without_rows
    try:
        run(
            signature.fetch_names,
            {
                spec.name: np.full(shapes[spec.name], "" if spec.dtype == TEXT else 0, spec.dtype)
                for spec in signature.inputs
            },
        )
    except Exception as error:  # onnxruntime's exceptions share no base class; shapes are a user's
        _LOGGER.warning(
            "[%s] the warm-up failed, so the first request will be slower, or fail too: on zeros "
            "of the shapes %s the model says: %s",
            signature.model,
            shapes,
            brief(error),
        )
        return False
    return True


def warm_up_shapes(
    inputs: Sequence[TensorSpec], usual_shapes: Shapes
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one run, by input name, less inputs whose shape cannot be told.

    An input of `usual_shapes` has the shape given there. For others the first dynamic dimension
    is the batch, of one; a dimension has the size that another input has under the same name.
    """
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    # Those that are given come first: they say how large the named dimensions are.
    for spec in sorted(inputs, key=lambda spec: spec.name not in usual_shapes):
        shape = tuple(usual_shapes.get(spec.name, ())) or _shape(spec, sizes)
        if shape is None:
            continue
        shapes[spec.name] = shape
        for dim, size in zip(spec.shape or (), shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return shapes


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the input's shape at a batch of one; None: a size is not known."""
    shape = []
    has_batch = False
    for dim in spec.shape or ():  # no shape: a scalar, as far as onnxruntime tells
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in sizes:
            shape.append(sizes[str(dim)])
        elif has_batch:
            return None
        else:
            shape.append(1)
        has_batch = has_batch or not isinstance(dim, int)
    return tuple(shape)
