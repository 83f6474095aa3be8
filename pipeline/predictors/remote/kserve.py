"""Client of models on servers of the v2 inference protocol (Triton, KServe, ...), over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pipeline.errors import (
    InitError,
    PackageError,
    PayloadTypeError,
    PipelineError,
)
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.grpc_calls import GrpcCalls, GrpcChannel, Method
from pipeline.predictors.signature import ModelSignature, refuse_unknown_arguments
from pipeline.proto.inference_v2_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays
from pipeline.proto.v2.raw import DATATYPES, with_text

_STARTUP_TIMEOUT_S = 10.0  # for a server to come up and describe the model


class KServePredictor:
    """A model on other servers as a `Predictor`; calls go round robin over those that are there.

    Elements of a BYTES input are `str` or `bytes`; those of a BYTES output are `str` if they are
    UTF-8, else `bytes`.

    Args:
        signature: the model's inputs and outputs as the server describes them.
        named: a request that names the model and its version.
        infer: the method ModelInfer.
        calls: makes the calls, and is closed with this predictor.
    """

    def __init__(
        self, signature: ModelSignature, named: ModelInferRequest, infer: Method, calls: GrpcCalls
    ) -> None:
        self.signature = signature
        self.feed_names: tuple[str, ...] = signature.feed_names
        self.fetch_names: tuple[str, ...] = signature.fetch_names
        self.close: Callable[[], None] = calls.close
        self._named = named
        self._infer = infer
        self._calls = calls

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, np.ndarray]:
        """Have the model run once: see `Predictor.predict` and `GrpcCalls.run`.

        `log_id`, unless it is 0, goes as the request's id.
        """
        if legacy:
            refuse_unknown_arguments(legacy)
        names = self.signature.fetch(fetch)
        arrays = self.signature.feed(feed, batch)
        request = self._request(arrays, names, log_id)
        answer = self._calls.run(self._infer, request.SerializeToString(), deadline_s)
        return self._results(answer, names)

    def _request(
        self, arrays: Mapping[str, np.ndarray], names: Sequence[str], log_id: int
    ) -> ModelInferRequest:
        request = ModelInferRequest()
        request.CopyFrom(self._named)
        if log_id:
            request.id = str(log_id)
        try:
            for name, array in arrays.items():
                add_tensor(request.inputs, request.raw_input_contents, name, array)
        except PayloadTypeError as error:
            raise PayloadTypeError(f"[{self.signature.model}] {error}") from error
        for name in names:
            request.outputs.add(name=name)
        return request

    def _results(self, answer: bytes, names: Sequence[str]) -> dict[str, np.ndarray]:
        try:
            response = ModelInferResponse.FromString(answer)
            arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
        except (DecodeError, PackageError) as error:
            self._calls.refuse_answer(error)
        missing = [name for name in names if name not in arrays]
        if missing:
            self._calls.refuse_answer(f"it lacks {', '.join(missing)}; it has {', '.join(arrays)}")
        return {name: with_text(arrays[name]) for name in names}


def connect(model: RemoteModel) -> KServePredictor:
    """Return a predictor that asks `model.endpoints`, once one of them has described the model.

    Raises:
        InitError: no server comes up in 10 s, the model is unknown there, a tensor has a datatype
            that is unknown here, or an endpoint is no "host:port".
    """
    channel = GrpcChannel(model)
    calls = GrpcCalls(model, channel.close)
    try:
        described = _described(model, channel, calls)
        signature = ModelSignature(
            model.name,
            [_spec(model, tensor) for tensor in described.inputs],
            [_spec(model, tensor) for tensor in described.outputs],
            model.fetch_list,
            takes_bytes=True,
        )
    except PipelineError:
        calls.close()
        raise
    named = ModelInferRequest(model_name=_model_name(model), model_version=model.model_version)
    return KServePredictor(signature, named, channel.method(f"/{SERVICE}/ModelInfer"), calls)


def _model_name(model: RemoteModel) -> str:
    return model.model_name or model.name


def _described(model: RemoteModel, channel: GrpcChannel, calls: GrpcCalls) -> ModelMetadataResponse:
    name = _model_name(model)
    metadata = channel.method(f"/{SERVICE}/ModelMetadata", waits=True)
    request = ModelMetadataRequest(name=name, version=model.model_version)
    try:
        answer = calls.run(metadata, request.SerializeToString(), _STARTUP_TIMEOUT_S)
        return ModelMetadataResponse.FromString(answer)
    except (PipelineError, DecodeError) as error:
        version = f" version {model.model_version}" if model.model_version else ""
        raise InitError(
            f"op.{model.name}: the server does not describe the model {name!r}{version}: {error}"
        ) from error


def _spec(model: RemoteModel, tensor: ModelMetadataResponse.TensorMetadata) -> TensorSpec:
    dtype = DATATYPES.get(tensor.datatype)
    if dtype is None:
        raise InitError(
            f"op.{model.name}: {tensor.name!r} has the datatype {tensor.datatype!r}, which is none "
            f"of {', '.join(DATATYPES)}"
        )
    dims = tuple(None if size < 0 else size for size in tensor.shape)
    return TensorSpec(tensor.name, dtype, dims or None)  # no shape at all: some servers say none
