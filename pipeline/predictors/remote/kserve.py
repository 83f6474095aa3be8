"""Client of models on servers of the v2 inference protocol (Triton, KServe, ...), over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pipeline.errors import InitError, InputError, PackageError, PayloadTypeError, PipelineError
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.remote.base import RemoteModel, RemotePredictor, encoded
from pipeline.predictors.remote.grpc_calls import GrpcCalls
from pipeline.predictors.signature import ModelSignature, only_feed
from pipeline.proto.inference_v2_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from pipeline.proto.lists import as_array
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays
from pipeline.proto.v2.raw import DATATYPES, with_text

_STARTUP_TIMEOUT_S = 10.0  # wait for a server that describes the model


class UndescribedSignature(ModelSignature):
    """The signature of a model whose inputs its server does not describe, as MLServer's default is.

    The server checks names and shapes; arrays keep their dtypes.
    """

    def __init__(self, model: str, fetch_list: Sequence[str] | None) -> None:
        super().__init__(model, (), ())
        self.fetch_names: tuple[str, ...] = tuple(fetch_list or ())

    def fetch(self, names: Sequence[str] | None) -> Sequence[str]:
        """Return the names to fetch; all outputs if there are none."""
        return (names,) if isinstance(names, str) else names or self.fetch_names

    def feed(self, feed: Any, batch: bool = True) -> dict[str, np.ndarray]:
        """Return numbers, texts and lists as arrays; see `ModelSignature.feed`."""
        arrays = {
            name: self._as_given(name, value) for name, value in only_feed(self.model, feed).items()
        }
        return arrays if batch else {name: array[np.newaxis] for name, array in arrays.items()}

    def _as_given(self, name: str, value: Any) -> np.ndarray:
        if not isinstance(name, str):
            raise InputError(f"[{self.model}] feed {name!r}: the name of an input is a text")
        if isinstance(value, str | bytes):
            value = [value]
        try:
            array = value if isinstance(value, np.ndarray) else as_array(value)
        except ValueError as error:
            raise InputError(f"[{self.model}] feed {name!r} is not an array: {error}") from error
        if array.dtype == object and any(map(_is_too_large, array.flat)):
            raise InputError(
                f"[{self.model}] feed {name!r} has an integer that 64 bits do not hold"
            )
        return array.astype(object) if array.dtype.kind in "SU" else array


def _is_too_large(value: object) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**64


class KServePredictor(RemotePredictor):
    """A model on other servers as a `Predictor`; calls go round robin over the servers that answer.

    Elements of a BYTES input are `str` or `bytes`; those of a BYTES output are `str` if they are
    UTF-8, otherwise `bytes`. A `log_id`, unless it is 0, is sent as the request's id.
    """

    def __init__(
        self, signature: ModelSignature, named: ModelInferRequest, calls: GrpcCalls
    ) -> None:
        ask = calls.asker(f"/{SERVICE}/ModelInfer", ModelInferResponse.FromString)
        super().__init__(
            signature.model, signature.feed_names, signature.fetch_names, ask, calls.close
        )
        self.signature = signature
        self._named = named
        self._calls = calls

    def request(self, feed: Any, fetch: Sequence[str] | None, batch: bool, log_id: int) -> bytes:
        names = self.signature.fetch(fetch)
        arrays = self.signature.feed(feed, batch)
        request = ModelInferRequest()
        request.CopyFrom(self._named)
        if log_id:
            request.id = str(log_id)
        try:
            for name, array in arrays.items():
                add_tensor(request.inputs, request.raw_input_contents, name, array)
        except PayloadTypeError as error:
            raise PayloadTypeError(f"[{self._name}] {error}") from error
        for name in names:
            request.outputs.add(name=name)
        return encoded(self._name, request)

    def result(
        self, answer: ModelInferResponse, fetch: Sequence[str] | None
    ) -> dict[str, np.ndarray]:
        try:
            arrays = tensors_to_arrays(answer.outputs, answer.raw_output_contents)
        except PackageError as error:
            self._calls.refuse_answer(error)
        names = self.signature.fetch(fetch) or tuple(arrays)
        missing = [name for name in names if name not in arrays]
        if missing:
            self._calls.refuse_answer(f"it lacks {', '.join(missing)}; it has {', '.join(arrays)}")
        return {name: with_text(arrays[name]) for name in names}


def connect(model: RemoteModel) -> KServePredictor:
    """Return a predictor that asks `model.endpoints`, once one of them has described the model.

    Raises InitError: no server is up within 10 s, the server lacks the model, a tensor has an
    unknown datatype, or an endpoint is not "host:port".
    """
    named = ModelInferRequest(
        model_name=model.model_name or model.name, model_version=model.model_version
    )
    calls = GrpcCalls(model)
    try:
        described = _described(model, named, calls)
        signature = _signature(model, described)
    except PipelineError:
        calls.close()
        raise
    return KServePredictor(signature, named, calls)


def _signature(model: RemoteModel, described: ModelMetadataResponse) -> ModelSignature:
    if not (described.inputs or described.outputs):
        return UndescribedSignature(model.name, model.fetch_list)
    return ModelSignature(
        model.name,
        [_spec(model, tensor) for tensor in described.inputs],
        [_spec(model, tensor) for tensor in described.outputs],
        model.fetch_list,
        takes_bytes=True,
    )


def _described(
    model: RemoteModel, named: ModelInferRequest, calls: GrpcCalls
) -> ModelMetadataResponse:
    metadata = calls.method(f"/{SERVICE}/ModelMetadata", waits=True)
    request = ModelMetadataRequest(name=named.model_name, version=named.model_version)
    try:
        answer = calls.run(metadata, request.SerializeToString(), _STARTUP_TIMEOUT_S)
        return ModelMetadataResponse.FromString(answer)
    except (PipelineError, DecodeError) as error:
        version = f" version {model.model_version}" if model.model_version else ""
        raise InitError(
            f"op.{model.name}: the server does not describe the model "
            f"{named.model_name!r}{version}: {error}"
        ) from error


def _spec(model: RemoteModel, tensor: ModelMetadataResponse.TensorMetadata) -> TensorSpec:
    dtype = DATATYPES.get(tensor.datatype)
    if dtype is None:
        raise InitError(
            f"op.{model.name}: {tensor.name!r} has the datatype {tensor.datatype!r}, which is not "
            f"one of {', '.join(DATATYPES)}"
        )
    dims = tuple(None if size < 0 else size for size in tensor.shape)
    return TensorSpec(tensor.name, dtype, dims or None)  # some servers report no shape
