"""Elements into the shape that a peer states, checked before anything is made by it."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from pipeline.proto import general_model_pb2, pipeline_service_pb2
from pipeline.proto.brpc.npy import MAX_DIMENSIONS, check_empty_rows
from pipeline.proto.pipeline.blocks import BlockMessage
from pipeline.proto.slices import breathe

_REST = -1  # of a dimension: what the elements leave for it, as numpy has it

Array = npt.NDArray[Any]
ShapedTensor = pipeline_service_pb2.Tensor | general_model_pb2.Tensor | BlockMessage


def in_shape(tensor: ShapedTensor, elements: Array, field: str) -> Array:
    """Return `elements`, which came from `field` of `tensor`, in the tensor's shape.

    Without a shape one element is a 0-d array and any other number a 1-D array.
    Raises ValueError where the elements do not fill the shape exactly.
    """
    check_shape(tensor, elements.size, field)
    shape = tensor.shape
    if not shape:
        return elements.reshape(()) if elements.size == 1 else elements
    try:
        return elements.reshape(shape)
    except ValueError as error:
        raise ValueError(f"no array has the shape {list(shape)}: {error}") from None


def check_shape(tensor: ShapedTensor, count: int, field: str) -> None:
    """Raise ValueError for a shape that the `count` elements of `field` do not fill exactly."""
    shape = tensor.shape
    if not shape:
        if not count:
            refuse_misplaced(tensor, field)
        return
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions are more than {MAX_DIMENSIONS}")
    others = [size for size in shape if size != _REST]
    if others and min(others) < 0:
        raise ValueError(f"shape {list(shape)} has a negative dimension")
    needed = math.prod(others)
    if len(others) < len(shape):
        if count and len(others) == len(shape) - 1 and needed and count % needed == 0:
            return
        if not count:
            refuse_misplaced(tensor, field)
        raise ValueError(
            f"shape {list(shape)} leaves one dimension to be told from the elements, but {field} "
            f"holds {count}"
        )
    if needed == count:
        if not needed:
            check_empty_rows(shape)
        return
    if not count:
        refuse_misplaced(tensor, field)
    raise ValueError(f"shape {list(shape)} needs {needed} elements, but {field} holds {count}")


def block_dims(skeleton: bytes) -> tuple[int, ...] | None:
    """Return the shape of nested lists from their brackets and commas; None: they are no block."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if not 0 < depth <= MAX_DIMENSIONS:
        return None
    block = skeleton[depth - 1 : skeleton.find(b"]") + 1]
    dims = [block.count(b",") + 1]
    for level in range(1, depth):
        end = skeleton.find(b"]" * (level + 1)) + level
        count, left = divmod(end - (depth - level) + 1, len(block) + 1)
        if left or count < 1:
            return None
        dims.insert(0, count)
        if math.prod(dims) > len(skeleton):  # or it would be built, however big
            return None
        breathe()
        block = b"[" + ((block + b",") * count)[:-1] + b"]"
    if math.prod(dims) != skeleton.count(b",") + 1:
        return None
    return tuple(dims) if block == skeleton else None


def refuse_misplaced(tensor: ShapedTensor, field: str) -> None:
    """Raise ValueError for a tensor without data in `field` that has data in another field.

    A peer that forgets elem_type says 0, INT64, and would get an empty array unnoticed.
    """
    for descriptor, value in tensor.ListFields():
        if descriptor.name.endswith(("data", "_content")):
            raise ValueError(
                f"elem_type {tensor.elem_type} is read from {field}, "
                f"which is empty; {descriptor.name} holds {len(value)}"
            )
