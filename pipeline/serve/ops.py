"""Ops that answer the general model service's calls with one model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pipeline.data import ChannelData
from pipeline.engine.request import Begin, ask
from pipeline.errors import (
    ErrorCode,
    InitError,
    PackageError,
    PipelineError,
    ProductError,
    error_from_wire,
)
from pipeline.frontends.grpc.server import GrpcCall, GrpcService, grpc_error
from pipeline.op import Op, RequestOp, ResponseOp
from pipeline.predictors.model_conf import SERVER_FILE, ModelConf, Var, conf_of, write_client_conf
from pipeline.predictors.signature import LOD
from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc import general_model
from pipeline.proto.general_model_pb2 import Request, Response, Tensor
from pipeline.proto.pipeline.blocks import BlockMessage, read_varint
from pipeline.proto.pipeline.response import pack_error
from pipeline.proto.slices import SHORT_BYTES, Limits

METHODS = ("inference", "debug")

ENGINE_NAME = "general_infer_0"
"""Paddle Serving's name for the only model of a service, in answers."""

_NO_CONF = ModelConf((), ())
_LENGTH_PREFIXED = 2  # the wire type
_LOG_ID_TAG = 4 << 3  # a varint
_MAX_FIELDS = 1024  # that are searched for the log_id


class ModelCall(NamedTuple):
    """One request as received: the bytes of a `Request`, with baidu_std's compression, or JSON.

    The answer has the same form.
    """

    message: bytes
    compress_type: int = 0
    log_id: int = 0
    is_json: bool = False


Answer = Callable[[ModelCall, float | None], Awaitable[bytes]]
"""(call, the caller's timeout in seconds) -> bytes of the answer. Raises PipelineError."""


def answers_of(begin: Begin) -> Answer:
    """Return the function that answers calls by the graph of these Ops."""

    async def answer(call: ModelCall, timeout_s: float | None) -> bytes:
        response = await ask(begin, call, timeout_s)
        if isinstance(response, bytes):
            return response
        raise error_from_wire(response.err_no, response.err_msg)

    return answer


def grpc_service(answer: Answer) -> GrpcService:
    """Return the service for a GrpcFrontend."""

    async def answered(message: bytes, call: GrpcCall) -> bytes:
        try:
            asked = ModelCall(message, log_id=log_id_of(message))
            return await answer(asked, call.time_left())
        except PipelineError as error:
            raise grpc_error(error) from error

    return GrpcService(baidu_std.SERVICE, dict.fromkeys(METHODS, answered))


def log_id_of(message: bytes) -> int:
    """Return `Request.log_id` of an encoded request, without decoding its tensors.

    Returns 0 without one, or if it is not a request: the decoder reports that later.
    """
    log_id = at = 0
    try:
        for _ in range(_MAX_FIELDS):
            if at >= len(message):
                break
            tag, at = read_varint(message, at)
            value, at = read_varint(message, at)
            if tag == _LOG_ID_TAG:
                log_id = value % 2**64
            elif tag & 7 == _LENGTH_PREFIXED:
                at += value
    except DecodeError:
        return 0
    return log_id


class CallOp(RequestOp):
    """A RequestOp that passes the call on unchanged, for a worker to read."""

    pipeline_is_quick = True

    def unpack_request_package(self, request: Any) -> Any:
        call: ModelCall = request
        return call._asdict(), call.log_id


class AnswerOp(ResponseOp):
    """A ResponseOp that passes on the answer of the model's worker, or packs an error."""

    pipeline_is_quick = True

    def pack_response_package(self, channeldata: ChannelData) -> Any:
        return pack_error(channeldata) if channeldata.error else channeldata.payload["message"]


class ModelOp(Op):
    """An Op that reads a call, runs the model, and writes the answer, all on a worker.

    Args:
        name: name of the Op, with its settings in `op.<name>`.
        conf: names and aliases; None: clients use the model's names.
        max_bytes: limit of a decompressed request.
        client_conf: a folder for the client configuration of the model.
    """

    pipeline_hands_on = True

    def __init__(
        self,
        name: str,
        conf: ModelConf | None,
        max_bytes: int,
        client_conf: Path | None = None,
    ) -> None:
        super().__init__(name, CallOp())
        self._conf = conf or _NO_CONF
        self._max_bytes = max_bytes
        self._limits = Limits(message_bytes=max_bytes)
        self._client_conf = client_conf

    def init_op(self) -> None:
        self._feeds = _names(self._conf.feeds, self.right_feed_names)
        self._fetches = _names(self._conf.fetches, self.right_fetch_names)
        self._written = {name: (name, name) for name in self.right_fetch_names}
        for var in self._conf.fetches:
            if var.name in self._fetches:
                self._written[self._fetches[var.name]] = (var.name, var.alias)
        if self._client_conf is not None:
            client: Any = self.client  # of a local engine, so it has a signature
            write_client_conf(self._client_conf, conf_of(client.signature, self._conf))

    def preprocess(
        self, input_dicts: dict[str, dict[str, Any]], data_id: int = 0, log_id: int = 0
    ) -> Any:
        (call,) = input_dicts.values()
        self._compress_type, self._is_json = call["compress_type"], call["is_json"]
        self._request = request = self._read(call["message"])
        self._wanted = [self._known(name, self._fetches) for name in request.fetch_var_names]
        feed: dict[str, Any] = {}
        for tensor in request.tensor:
            name = self._fed(tensor)
            if name in feed:
                raise _refused(f"feed {name!r} is there twice")
            try:
                feed[name] = general_model.tensor_to_array(tensor)
                lod = general_model.lod_of(tensor)
            except baidu_std.FrameError as error:
                raise _refused(str(error)) from error
            if lod is not None:
                feed[f"{name}{LOD}"] = lod
        missing = [name for name in self.right_feed_names if name not in feed]
        if missing:
            raise _refused(f"no tensor for feed {', '.join(map(repr, missing))}")
        return feed, False, None, ""

    def postprocess(
        self,
        input_dicts: dict[str, dict[str, Any]],
        fetch_data: Any,
        data_id: int = 0,
        log_id: int = 0,
    ) -> Any:
        tensors = [
            general_model.value_pieces(
                *self._written[name], fetch_data[name], fetch_data.get(f"{name}{LOD}")
            )
            for name in self._wanted or self.right_fetch_names
        ]
        response = general_model.response_bytes(ENGINE_NAME, self._request.log_id, tensors)
        if self._is_json:
            answer = Response.FromString(response)
            return {"message": general_model.response_to_json(answer)}, None, ""
        message = baidu_std.compress(self._compress_type, response)
        return {"message": message}, None, ""

    def _read(self, message: bytes) -> Request | BlockMessage:
        try:
            if self._is_json:
                return general_model.request_from_json(message)
            if self._compress_type:
                message = baidu_std.decompress(self._compress_type, message, self._max_bytes)
            if len(message) > SHORT_BYTES:
                return general_model.large_request(message, self._limits)
            return Request.FromString(message)
        except (PackageError, baidu_std.FrameError) as error:
            raise _refused(str(error), ErrorCode.RPC_PACKAGE_ERROR) from error
        except DecodeError as error:
            raise _refused(f"not a Request: {error}", ErrorCode.RPC_PACKAGE_ERROR) from error

    def _fed(self, tensor: Tensor | BlockMessage) -> str:
        """Return the feed of a tensor: clients give both names, or one of them."""
        if tensor.alias_name in self._feeds:
            return self._feeds[tensor.alias_name]
        return self._known(tensor.name or tensor.alias_name, self._feeds)

    def _known(self, name: str, names: Mapping[str, str]) -> str:
        if name not in names:
            kind = "feeds" if names is self._feeds else "fetches"
            known = ", ".join(sorted(names))
            raise _refused(f"the model has no {name!r} among its {kind}: {known}")
        return names[name]


def _refused(text: str, code: ErrorCode = ErrorCode.INPUT_PARAMS_ERROR) -> ProductError:
    """Return the error of a call, with a text that the client gets unchanged."""
    return ProductError(code, text)


def _names(variables: tuple[Var, ...], names: list[str]) -> dict[str, str]:
    """Return the inputs or outputs by all names for clients: the model's names, and aliases."""
    known = {name: name for name in names}
    matches = 0
    for var in variables:
        present = next((name for name in (var.alias, var.name) if name in names), None)
        if present is not None:  # otherwise a fetch_list may have left it out
            known |= {var.name: present, var.alias: present}
            matches += 1
    if variables and not matches:
        listed = ", ".join(f"{var.name} ({var.alias})" for var in variables)
        raise InitError(
            f"{SERVER_FILE} beside the model is of another one: it has {listed}, and the model "
            f"{', '.join(names)}"
        )
    return known
