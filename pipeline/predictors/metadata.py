"""ModelMetadata: what a worker tells the server of the model that it has loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pipeline.predictors.base import TEXT, TensorSpec
from pipeline.predictors.memory import MemoryUse


class TensorMetadata(msgspec.Struct, frozen=True, array_like=True):
    """`dtype` is numpy's name of it, "" for text; `shape` has -1 for any size, None: any rank."""

    name: str
    dtype: str
    shape: list[int] | None


class ModelMetadata(msgspec.Struct, frozen=True, array_like=True):
    """One model: its engine, inputs and outputs, and the memory that loading it took."""

    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    memory: list[MemoryUse] = []


def note_of(predictor: Any) -> ModelMetadata | None:
    """Return what a predictor can tell; None if it has no signature, as remote ones may not."""
    signature = getattr(predictor, "signature", None)
    if signature is None:
        return None
    outputs = [spec for spec in signature.outputs if spec.name in signature.fetch_names]
    return ModelMetadata(
        platform=str(getattr(predictor, "platform", "")),
        inputs=[_noted(spec) for spec in signature.inputs],
        outputs=[_noted(spec) for spec in outputs],
        memory=list(getattr(predictor, "memory_usage", ())),
    )


def _noted(spec: TensorSpec) -> TensorMetadata:
    dtype = "" if spec.dtype == TEXT else np.dtype(spec.dtype).name
    shape = None
    if spec.shape is not None:
        shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return TensorMetadata(spec.name, dtype, shape)
