"""The backend `onnxruntime`: ONNX files, run by the same predictor as the Ops of a pipeline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.models import OutputChecks
from pipeline.errors import ConfigError
from pipeline.op import Op, RequestOp, ResponseOp
from pipeline.predictors.base import (
    LocalModel,
    ModelMetadata,
    TensorMetadata,
    load_local_predictor,
    metadata_of,
)
from pipeline.predictors.local import LocalPredictor
from pipeline.predictors.signature import ModelSignature
from pipeline.proto.inference_v2_pb2 import DataType, ModelConfig
from pipeline.proto.v2.raw import datatype_of
from pipeline.repository.backends.base import Backend, ModelSource
from pipeline.repository.backends.ragged import (
    ModelBatch,
    Reshaping,
    is_ragged,
    maybe_scalars,
    ragged_inputs,
    reshaping_of,
)
from pipeline.repository.backends.tensor_checks import check_signature

_MAX_BATCH_SIZE = 4  # of a model that batches without a configured size, as in Triton
_ANY = -1
_THREADS = "intra_op_thread_count"
_EMPTY = "takes_empty"


class OnnxOp(Op):
    """A model of an ONNX file, which has the tensors that its configuration says."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.name, RequestOp())
        self.config: ModelConfig = config
        if is_ragged(config):
            self.pipeline_ragged: frozenset[str] = ragged_inputs(config)
            self.pipeline_ragged_batch: ModelBatch = ModelBatch(config)

    def init_op(self) -> None:
        """Compare the loaded model with the configuration. Raises ConfigError."""
        check_signature(self.config, _signature(self))


class ReshapingOp(OnnxOp):
    """A model whose tensors have other shapes than its callers see: `reshape`, and scalars."""

    pipeline_hands_on = True

    def init_op(self) -> None:
        """Find out which inputs are scalars. Raises ConfigError as `OnnxOp`."""
        super().init_op()
        scalars = [spec.name for spec in _signature(self).inputs if spec.shape == ()]
        self.reshaping: Reshaping = reshaping_of(self.config, scalars)

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        """Run the model on arrays of its own shapes, and return arrays of the callers' shapes."""
        feed = self.reshaping.fed(feed_batch[0])
        return self.reshaping.answered(super().process([feed], typical_logid))


def _signature(op: Op) -> ModelSignature:
    return cast(LocalPredictor, op.client).signature


class OnnxRuntimeBackend(Backend):
    """ONNX models; the file completes what a configuration does not say about tensors."""

    workers = "thread"
    output_checks: OutputChecks = frozenset({"type"})

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Return the configuration with the inputs and outputs of the file."""
        config = source.config
        if not source.file.exists():
            raise ConfigError(
                f"unable to find '{source.file}' for model '{source.name}': add the file, or name "
                "another one by default_model_filename"
            )
        if source.is_complete or _is_whole(config):
            return config
        note = await asyncio.to_thread(_read, source)
        return completed(config, note)

    def graph(self, source: ModelSource) -> Graph:
        """Return a graph whose Op runs the model."""
        config = source.config
        tensors: list[Any] = [*config.input, *config.output]
        has_reshape = any(tensor.HasField("reshape") for tensor in tensors)
        reshapes = not is_ragged(config) and (has_reshape or bool(maybe_scalars(config)))
        return build_graph(ResponseOp((ReshapingOp if reshapes else OnnxOp)(config)))

    def settings(self, source: ModelSource) -> dict[str, Any]:
        """Return the equivalent of config.yml for the Op's model."""
        config = source.config
        local: dict[str, Any] = {
            "model_config": str(source.file),
            "client_type": "local_predictor",
            "engine": "onnx",
            "fetch_list": [output.name for output in config.output],
        }
        threads = _threads(config)
        if threads:
            local["thread_num"] = threads
        if _takes_empty(config):
            local["takes_empty"] = True
        return {"local_service_conf": local}


ONNXRUNTIME = OnnxRuntimeBackend()
"""The backend itself."""


def completed(config: ModelConfig, note: ModelMetadata) -> ModelConfig:
    """Return a configuration, completed with the inputs and outputs of a file.

    If all tensors of a model have a free first dimension, it batches.

    Raises ConfigError: it does not, although the configuration says so.
    """
    result = ModelConfig()
    result.CopyFrom(config)
    tensors = [*note.inputs, *note.outputs]
    can_batch = all(tensor.shape and tensor.shape[0] == _ANY for tensor in tensors)
    if not result.max_batch_size and can_batch and _is_meant_to_batch(result, note):
        result.max_batch_size = _MAX_BATCH_SIZE
        if not (result.HasField("sequence_batching") or result.HasField("dynamic_batching")):
            result.dynamic_batching.SetInParent()
    elif result.max_batch_size > 0 and not can_batch:
        raise ConfigError(
            f"autofill failed for model '{config.name}': model does not support batching while "
            "non-zero max_batch_size is specified"
        )
    skip = 1 if result.max_batch_size > 0 else 0
    for there, configured in ((note.inputs, result.input), (note.outputs, result.output)):
        _fill_in(config.name, there, configured, skip)
    return result


def _fill_in(model: str, there: Sequence[TensorMetadata], configured: Any, skip: int) -> None:
    """Add the file's tensors, and their missing settings, to the tensors of a configuration.

    Raises ConfigError: the file does not say how many dimensions a tensor has.
    """
    known = {tensor.name: tensor for tensor in configured}
    adds = not known
    for tensor in there:
        if tensor.name not in known:
            if not adds:
                continue
            known[tensor.name] = configured.add(name=tensor.name)
        slot = known[tensor.name]
        if not slot.data_type:
            name = datatype_of(np.dtype(tensor.dtype)) if tensor.dtype else "STRING"
            slot.data_type = DataType.Value(f"TYPE_{name}")
        if slot.dims:
            continue
        if tensor.shape is None:
            raise ConfigError(
                f"model '{model}': its file does not say how many dimensions '{tensor.name}' has: "
                "give its dims in config.pbtxt"
            )
        dims = tensor.shape[skip:]
        slot.dims.extend(dims or [1])
        if not dims and skip:
            slot.reshape.SetInParent()  # a scalar for each sample


def _is_meant_to_batch(config: ModelConfig, note: ModelMetadata) -> bool:
    """Return whether the configured tensors, if any, are without the batch."""
    ranks = {tensor.name: len(tensor.shape or ()) for tensor in (*note.inputs, *note.outputs)}
    tensors: list[Any] = [*config.input, *config.output]
    shaped = [tensor for tensor in tensors if tensor.dims]
    return all(len(tensor.dims) == ranks.get(tensor.name, math.inf) - 1 for tensor in shaped)


def _is_whole(config: ModelConfig) -> bool:
    tensors: list[Any] = [*config.input, *config.output]
    is_complete = all(tensor.data_type and tensor.dims for tensor in tensors)
    return bool(config.input and config.output and is_complete)


def _read(source: ModelSource) -> ModelMetadata:
    model = LocalModel(source.file, engine="onnx")
    predictor = load_local_predictor(model)
    try:
        note = metadata_of(predictor)
        assert note is not None  # never for an ONNX model
        return note
    finally:
        predictor.close()


def _threads(config: ModelConfig) -> int:
    text = config.parameters[_THREADS].string_value if _THREADS in config.parameters else ""
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"model '{config.name}': parameters: {_THREADS}: expected a number, found {text!r}"
        )
    return int(text or 0)


def _takes_empty(config: ModelConfig) -> bool:
    text = config.parameters[_EMPTY].string_value if _EMPTY in config.parameters else "false"
    if text not in ("true", "false"):
        raise ConfigError(
            f"model '{config.name}': parameters: {_EMPTY}: expected true or false, found {text!r}"
        )
    return text == "true"
