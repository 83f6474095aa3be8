"""ModelMetadata: what a worker tells the server of the model that it has loaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.predictors.base import TEXT, TensorSpec


class MemoryUse(msgspec.Struct, frozen=True, array_like=True):
    """`kind` is Triton's: "CPU", "CPU_PINNED" or "GPU"; `id` the card's number."""

    kind: str
    id: int
    byte_size: int


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


def metadata_of(predictor: Any) -> ModelMetadata | None:
    """Return what a predictor can tell; None if it has no signature, as remote ones may not."""
    signature = getattr(predictor, "signature", None)  # `Op.client` may be anything of a script's
    if signature is None:
        return None
    outputs = [spec for spec in signature.outputs if spec.name in signature.fetch_names]
    return ModelMetadata(
        platform=str(getattr(predictor, "platform", "")),
        inputs=[_tensor_metadata(spec) for spec in signature.inputs],
        outputs=[_tensor_metadata(spec) for spec in outputs],
        memory=list(getattr(predictor, "memory_usage", ())),
    )


def _tensor_metadata(spec: TensorSpec) -> TensorMetadata:
    dtype = "" if spec.dtype == TEXT else np.dtype(spec.dtype).name
    shape = None
    if spec.shape is not None:
        shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return TensorMetadata(spec.name, dtype, shape)


class LoadMeter:
    """A measurement of a load in its `with` block: by how much this process grew.

    Where other loads ran in the same process meanwhile it cannot tell whose memory it was.
    """

    _lock = threading.Lock()
    _begun = 0
    _running = 0

    def __enter__(self) -> LoadMeter:
        with LoadMeter._lock:
            LoadMeter._begun += 1
            LoadMeter._running += 1
            self._number = LoadMeter._begun
            self._is_alone = LoadMeter._running == 1
        self._before = _resident_bytes()
        return self

    def uses(self) -> Sequence[MemoryUse]:
        """Return what was taken so far; nothing if that is not known, or not positive."""
        grown = _resident_bytes() - self._before
        with LoadMeter._lock:
            is_alone = self._is_alone and LoadMeter._begun == self._number
        return [MemoryUse("CPU", 0, grown)] if is_alone and grown > 0 else []

    def __exit__(self, *_: object) -> None:
        with LoadMeter._lock:
            LoadMeter._running -= 1


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # another system than Linux
        return 0
