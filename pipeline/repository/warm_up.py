"""Warm-up samples of a model, from its `model_warmup`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engine.op.answer_form import packed
from pipeline.errors import ConfigError, PackageError
from pipeline.proto.inference_v2_pb2 import DataType, ModelConfig, ModelWarmup
from pipeline.proto.v2.raw import BYTES, DATATYPES, about_request, object_array, raw_to_array
from pipeline.repository.backends.base import ModelSource
from pipeline.workers.warm_up import WarmUpSample

FOLDER = "warmup"
"""The folder of a model with the files of its samples."""

_ABOUT = about_request("")


def samples_of(source: ModelSource) -> tuple[WarmUpSample, ...]:
    """Return the samples of a complete model; reads files. Raises ConfigError."""
    config = source.config
    return tuple(
        _sample(setting, config, source.folder / FOLDER)
        for setting in config.model_warmup
        if setting.batch_size
    )


def _sample(setting: ModelWarmup, config: ModelConfig, folder: Path) -> WarmUpSample:
    batches = config.max_batch_size > 0
    feed = {
        name: _array(name, setting.inputs[name], (1,) if batches else (), folder)
        for name in sorted(setting.inputs)
    }
    own = {tensor.name for tensor in config.input}
    return WarmUpSample(
        setting.name,
        packed(feed),
        setting.batch_size,
        max(1, setting.count),
        batches,
        tuple(name for name in feed if name not in own),
    )


def _array(name: str, setting: Any, batch: tuple[int, ...], folder: Path) -> np.ndarray[Any, Any]:
    """Return an input of a sample. Raises ConfigError, in Triton's words."""
    if any(size < 0 for size in setting.dims):
        raise ConfigError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    datatype = DataType.Name(setting.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise ConfigError(f"warmup setting: input '{name}' has no data_type")
    shape = (*batch, *setting.dims)
    kind = setting.WhichOneof("input_data_type")
    if kind is None:
        raise ConfigError(
            f"{_ABOUT}warmup setting expects input '{name}' to have input_data_type set"
        )
    if kind == "input_data_file":
        return _read(setting.input_data_file, datatype, dtype, shape, folder)
    if dtype == BYTES:
        return object_array([b""] * math.prod(shape), shape)
    if kind == "zero_data":
        return np.zeros(shape, dtype)
    data = np.frombuffer(np.random.default_rng().bytes(math.prod(shape) * dtype.itemsize), np.uint8)
    return (
        (data & 1).view(dtype).reshape(shape)
        if datatype == "BOOL"
        else (data.view(dtype).reshape(shape))
    )


def _read(
    file: str, datatype: str, dtype: np.dtype[Any], shape: tuple[int, ...], folder: Path
) -> np.ndarray[Any, Any]:
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ConfigError(f"warmup setting: {file} is not in the folder {FOLDER} of the model")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"failed to read text file {path}: {error.strerror}") from error
    needed = math.prod(shape) * dtype.itemsize
    if dtype != BYTES and len(data) < needed:
        raise ConfigError(
            f"{_ABOUT}warmup setting expects {needed} bytes, but the data provided from {file}"
            f"only has {len(data)} bytes"
        )
    try:
        return raw_to_array(datatype, shape, data if dtype == BYTES else data[:needed])
    except PackageError as error:
        raise ConfigError(f"warmup setting: {file}: {error}") from error
