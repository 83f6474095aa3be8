"""Requests of a model to others of its server: `InferenceRequest` with `exec` and `async_exec`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import grpc

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.inference_v2_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays
from pipeline.repository.backends.python.requests import (
    FLAG_END,
    FLAG_START,
    InferenceResponse,
    TritonError,
    TritonModelException,
)
from pipeline.repository.backends.python.tensors import NamedTensor

_CODES = {
    grpc.StatusCode.NOT_FOUND: TritonError.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT: TritonError.INVALID_ARG,
    grpc.StatusCode.UNAVAILABLE: TritonError.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED: TritonError.UNSUPPORTED,
    grpc.StatusCode.CANCELLED: TritonError.CANCELLED,
}
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class ServerChannel:
    """The connection to the server whose worker this is, made by the first call.

    Attributes:
        address: "host:port" of the server; "": it has no gRPC port.
    """

    address: str = ""
    _lock = threading.Lock()
    _channel: grpc.Channel | None = None

    @classmethod
    def get(cls) -> grpc.Channel:
        """Return it. TritonModelException: the server has no gRPC port."""
        with cls._lock:
            if cls._channel is None:
                if not cls.address:
                    raise TritonModelException(
                        "models ask others by the server's gRPC port, which it does not have"
                    )
                cls._channel = grpc.insecure_channel(cls.address, options=_OPTIONS)
            return cls._channel


class InferenceRequest:
    """A request to another model of the server.

    Args:
        model_name: of the model.
        requested_output_names: outputs that are wanted.
        inputs: tensors.
        request_id: comes back with nothing, but is in logs.
        correlation_id: of a sequence; 0 or "" for none.
        model_version: -1: the latest.
        flags: of a sequence.
        timeout: microseconds; 0: none.
        preferred_memory: has no effect.
        parameters: of the request, a dict.
        trace: has no effect.
    """

    def __init__(
        self,
        model_name: str,
        requested_output_names: Sequence[str],
        inputs: Sequence[NamedTensor],
        request_id: str = "",
        correlation_id: int | str = 0,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        parameters: Mapping[str, Any] | str | None = None,
        trace: Any = None,
    ) -> None:
        self._name = model_name
        self._message = ModelInferRequest(model_name=model_name, id=request_id)
        if model_version > 0:
            self._message.model_version = str(model_version)
        self._inputs = list(inputs)
        self._outputs = list(requested_output_names)
        self._id = request_id
        self._sequence = correlation_id
        self._flags = flags
        self._timeout = timeout
        self._said = json.loads(parameters or "{}") if isinstance(parameters, str) else parameters

    def inputs(self) -> list[NamedTensor]:
        """Return the tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence."""
        return self._sequence

    def requested_output_names(self) -> list[str]:
        """Return the outputs that are wanted."""
        return self._outputs

    def set_flags(self, flags: int) -> None:
        """Say whether it is the first or the last one of its sequence."""
        self._flags = flags

    def flags(self) -> int:
        """Return what was said so."""
        return self._flags

    def exec(
        self, decoupled: bool = False, execution_timeout: float | None = None
    ) -> InferenceResponse | Iterator[InferenceResponse]:
        """Return the response; if it is `decoupled`, an iterator of several."""
        call = self._stream if decoupled else self._unary
        return call(ServerChannel.get())

    def async_exec(self, decoupled: bool = False) -> Any:
        """Return what is awaited for the response; if it is `decoupled`, an async iterator."""
        return self._awaited_stream() if decoupled else asyncio.to_thread(self.exec)

    async def _awaited_stream(self) -> AsyncIterator[InferenceResponse]:
        found = self._stream(ServerChannel.get())
        while (response := await asyncio.to_thread(next, found, None)) is not None:
            yield response

    def _unary(self, channel: grpc.Channel) -> InferenceResponse:
        ask = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            ModelInferRequest.SerializeToString,
            ModelInferResponse.FromString,
        )
        try:
            return _response(ask(self._written(), timeout=self._limit_s))
        except grpc.RpcError as error:
            return _failed(error)

    def _stream(self, channel: grpc.Channel) -> Iterator[InferenceResponse]:
        ask = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            ModelInferRequest.SerializeToString,
            ModelStreamInferResponse.FromString,
        )
        try:
            for found in ask(iter([self._written()]), timeout=self._limit_s):
                if found.error_message:
                    yield InferenceResponse(error=TritonError(found.error_message))
                else:
                    yield _response(found.infer_response)
        except grpc.RpcError as error:
            yield _failed(error)

    @property
    def _limit_s(self) -> float | None:
        return self._timeout / 1e6 if self._timeout else None

    def _written(self) -> ModelInferRequest:
        message = ModelInferRequest()
        message.CopyFrom(self._message)
        for name in self._outputs:
            message.outputs.add(name=name)
        try:
            for tensor in self._inputs:
                array = tensor.as_numpy()
                add_tensor(message.inputs, message.raw_input_contents, tensor.name(), array)
        except (PayloadTypeError, PackageError) as error:
            raise TritonModelException(str(error)) from error
        for name, value in self._parameters().items():
            _set(message.parameters[name], value)
        return message

    def _parameters(self) -> dict[str, Any]:
        said = dict(self._said or {})
        if self._sequence:
            said["sequence_id"] = self._sequence
            said["sequence_start"] = bool(self._flags & FLAG_START)
            said["sequence_end"] = bool(self._flags & FLAG_END)
        return said


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)


def _response(message: ModelInferResponse) -> InferenceResponse:
    arrays = tensors_to_arrays(message.outputs, message.raw_output_contents)
    return InferenceResponse([NamedTensor(name, array) for name, array in arrays.items()])


def _failed(error: grpc.RpcError) -> InferenceResponse:
    code = _CODES.get(error.code(), TritonError.INTERNAL)
    return InferenceResponse(error=TritonError(str(error.details()), code))
