"""Tensors of onnxruntime as numpy's: element types, specs, and dtypes that numpy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pipeline.errors import InitError
from pipeline.predictors.base import TEXT, TensorSpec

DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(int16)": np.dtype(np.int16),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(uint16)": np.dtype(np.uint16),
    "tensor(uint32)": np.dtype(np.uint32),
    "tensor(uint64)": np.dtype(np.uint64),
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(string)": TEXT,
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(float8e4m3fn)": np.dtype(ml_dtypes.float8_e4m3fn),
    "tensor(float8e4m3fnuz)": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "tensor(float8e5m2)": np.dtype(ml_dtypes.float8_e5m2),
    "tensor(float8e5m2fnuz)": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
"""onnxruntime's name of a tensor type to numpy's dtype; object stands for text."""

ELEMENT_TYPES = {
    np.dtype(ml_dtypes.bfloat16): 16,
    np.dtype(ml_dtypes.float8_e4m3fn): 17,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 18,
    np.dtype(ml_dtypes.float8_e5m2): 19,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 20,
}
"""TensorProto.DataType of the dtypes that numpy lacks: onnxruntime takes no arrays of these."""


def tensor_spec(model: str, node: Any) -> TensorSpec:
    """Return an onnxruntime NodeArg as TensorSpec.

    Raises:
        InitError: it is a sequence, a map or an optional, which is no array.
    """
    dtype = DTYPES.get(node.type)
    if dtype is None:
        raise InitError(
            f"[{model}] {node.name!r} is {node.type}, which cannot be fed or fetched as an array: "
            "export the model with tensors only, or leave the output out of fetch_list"
        )
    # onnxruntime says [] for a scalar and for an unknown rank alike: let both pass.
    return TensorSpec(node.name, dtype, tuple(node.shape) or None)
