"""The v2 inference protocol over gRPC: `inference.GRPCInferenceService`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
import msgspec
import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from pipeline.engine.offload import Offload
from pipeline.engine.request import AnswerFuture, RequestHandle, ResponseSink
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import PipelineError
from pipeline.frontends.grpc.server import (
    GrpcCall,
    GrpcError,
    GrpcService,
    Reply,
    Stream,
    Unary,
)
from pipeline.frontends.v2 import ModelRepository, V2Error, V2Status, v2_error
from pipeline.frontends.v2.control import overrides_of, with_dependents_of
from pipeline.frontends.v2.errors import NO_REPOSITORY_NAME, invalid
from pipeline.frontends.v2.forms import InferCall, RequestForms
from pipeline.frontends.v2.inference import CallerInfo, Inference, is_short_answer
from pipeline.frontends.v2.log_settings import settings_of_message
from pipeline.frontends.v2.model import number_of
from pipeline.frontends.v2.parameters import ERRORS_END, WANTS_FINAL
from pipeline.frontends.v2.shared_regions import Region, no_cuda, no_cuda_region
from pipeline.frontends.v2.side_by_side import Place, side_by_side
from pipeline.frontends.v2.trace_settings import changes_of, shown
from pipeline.observe.statistics import fill_statistics
from pipeline.observe.traces.traces import GRPC
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.pipeline.blocks import field_head
from pipeline.proto.slices import SHORT_BYTES, Limits, Piece, joined, weight
from pipeline.proto.v2.codec import (
    SERVICE,
    InferRequest,
    InferResponse,
    read_large_message,
    read_message,
    response_pieces,
)
from pipeline.proto.v2.forms import UnknownFormError
from pipeline.proto.v2.message_forms import message_codec, raw_place

_CLOCKS_DIFFER_S = 0.01  # maximum difference between gRPC's clock and the engine's
_FINAL = "triton_final_response"
_IN_STREAM = pb.ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number

_Request = TypeVar("_Request", bound=Message)
_RepositoryRequest = (
    pb.RepositoryIndexRequest | pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest
)


def inference_service(
    models: ModelRepository,
    offload: Offload | None = None,
    limits: Limits | None = None,
    takes_trace: bool = True,
    memory: MemoryDomain = LOCAL,
) -> GrpcService:
    """Return the service for a GrpcFrontend; `offload` reads and writes large messages.

    With `takes_trace` the engine receives the client's traceparent. `memory` keeps large messages.
    """
    how = (offload or Offload(threads=0), limits or Limits(), takes_trace, memory)
    calls, inference = _Calls(models), _InferenceCalls(models.inference, *how)
    answers: Mapping[str, Callable[[Any, GrpcCall], Awaitable[Message]]] = {
        "ServerLive": calls.server_live,
        "ServerReady": calls.server_ready,
        "ModelReady": calls.model_ready,
        "ServerMetadata": calls.server_metadata,
        "ModelMetadata": calls.model_metadata,
        "ModelConfig": calls.model_config,
        "ModelStatistics": calls.model_statistics,
        "TraceSetting": calls.trace_setting,
        "LogSettings": calls.log_settings,
        "SystemSharedMemoryStatus": calls.regions,
        "SystemSharedMemoryRegister": calls.register,
        "SystemSharedMemoryUnregister": calls.unregister,
        "CudaSharedMemoryStatus": calls.cuda_regions,
        "CudaSharedMemoryRegister": calls.register_cuda,
        "CudaSharedMemoryUnregister": calls.unregister_cuda,
        "RepositoryIndex": calls.repository_index,
        "RepositoryModelLoad": calls.load,
        "RepositoryModelUnload": calls.unload,
    }
    methods = {
        name: _unary(getattr(pb, f"{name}Request"), answer) for name, answer in answers.items()
    }
    methods["ModelInfer"] = inference.model_infer
    streams: Mapping[str, Stream] = {"ModelStreamInfer": inference.model_stream_infer}
    return GrpcService(SERVICE, methods, streams, {"ModelInfer": inference})


class _Calls:
    """The methods, from message to message. They raise V2Error and PipelineError."""

    def __init__(self, models: ModelRepository) -> None:
        self._models = models

    async def server_live(self, request: Any, call: GrpcCall) -> Message:
        return pb.ServerLiveResponse(live=self._models.is_live)

    async def server_ready(self, request: Any, call: GrpcCall) -> Message:
        return pb.ServerReadyResponse(ready=await self._models.is_ready())

    async def model_ready(self, request: pb.ModelReadyRequest, call: GrpcCall) -> Message:
        number_of(request.version)  # refuses an invalid version
        is_ready = await self._models.is_model_ready(request.name, request.version)
        return pb.ModelReadyResponse(ready=is_ready)

    async def server_metadata(self, request: Any, call: GrpcCall) -> Message:
        return pb.ServerMetadataResponse(**self._models.server_metadata())

    async def model_metadata(self, request: pb.ModelMetadataRequest, call: GrpcCall) -> Message:
        metadata = self._models.metadata(request.name, request.version)
        return json_format.ParseDict(metadata, pb.ModelMetadataResponse())

    async def model_config(self, request: pb.ModelConfigRequest, call: GrpcCall) -> Message:
        config = self._models.config(request.name, request.version)
        return json_format.ParseDict({"config": config}, pb.ModelConfigResponse())

    async def model_statistics(self, request: pb.ModelStatisticsRequest, call: GrpcCall) -> Message:
        response = pb.ModelStatisticsResponse()
        fill_statistics(await self._models.statistics(request.name, request.version), response)
        return response

    async def log_settings(self, request: pb.LogSettingsRequest, call: GrpcCall) -> Message:
        settings = self._models.log_settings
        settings.change(settings_of_message(request.settings))
        response = pb.LogSettingsResponse()
        for name, value in settings.shown().items():
            shown = response.settings[name]
            if isinstance(value, bool):
                shown.bool_param = value
            elif isinstance(value, int):
                shown.uint32_param = value
            else:
                shown.string_param = value
        return response

    async def trace_setting(self, request: pb.TraceSettingRequest, call: GrpcCall) -> Message:
        values = {name: list(setting.value) for name, setting in request.settings.items()}
        changes = (lambda: changes_of(values)) if values else (lambda: None)
        settings = await self._models.trace_settings(request.model_name, changes)
        response = pb.TraceSettingResponse()
        for name, value in shown(settings).items():
            response.settings[name].value.extend([value] if isinstance(value, str) else value)
        return response

    async def regions(self, request: pb.SystemSharedMemoryStatusRequest, call: GrpcCall) -> Message:
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._models.regions.status(request.name):
            shown = response.regions[region.name]
            shown.name, shown.key = region.name, region.key
            shown.offset, shown.byte_size = region.offset, region.byte_size
        return response

    async def register(
        self, request: pb.SystemSharedMemoryRegisterRequest, call: GrpcCall
    ) -> Message:
        region = Region(request.name, request.key, request.offset, request.byte_size)
        self._models.regions.register(region)
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, call: GrpcCall
    ) -> Message:
        self._models.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_regions(
        self, request: pb.CudaSharedMemoryStatusRequest, call: GrpcCall
    ) -> Message:
        if request.name:
            raise no_cuda_region(request.name)
        return pb.CudaSharedMemoryStatusResponse()

    async def register_cuda(
        self, request: pb.CudaSharedMemoryRegisterRequest, call: GrpcCall
    ) -> Message:
        raise no_cuda(request.name, is_new=True)

    async def unregister_cuda(
        self, request: pb.CudaSharedMemoryUnregisterRequest, call: GrpcCall
    ) -> Message:
        if request.name:
            raise no_cuda(request.name, is_new=False)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def repository_index(self, request: pb.RepositoryIndexRequest, call: GrpcCall) -> Message:
        _check_repository(request)
        index = await self._models.index(request.ready)
        models = [pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in index]
        return pb.RepositoryIndexResponse(models=models)

    async def load(self, request: pb.RepositoryModelLoadRequest, call: GrpcCall) -> Message:
        _check_repository(request)
        await self._models.load(request.model_name, overrides_of(request.parameters))
        return pb.RepositoryModelLoadResponse()

    async def unload(self, request: pb.RepositoryModelUnloadRequest, call: GrpcCall) -> Message:
        _check_repository(request)
        with_dependents = with_dependents_of(request.parameters)
        await self._models.unload(request.model_name, with_dependents)
        return pb.RepositoryModelUnloadResponse()


class _InferenceCalls:
    """ModelInfer and ModelStreamInfer."""

    def __init__(
        self,
        inference: Inference,
        offload: Offload,
        limits: Limits,
        takes_trace: bool,
        memory: MemoryDomain,
    ) -> None:
        self._inference = inference
        self._memory = memory
        self._views = inference.views
        self._forms = RequestForms(inference, message_codec(limits), limits)
        self._takes_trace = takes_trace
        self._offload = offload
        self._limits = limits

    async def model_infer(self, message: Piece, call: GrpcCall) -> bytes | list[Piece]:
        if len(message) > SHORT_BYTES and isinstance(message, bytes):
            message = await self._placed(message, call)
        future = AnswerFuture()
        future.request = self.begin(message, call, future)
        if future.request is not None:
            reply = self.reply(await future, call)
            return reply if isinstance(reply, bytes | list) else await reply
        try:
            return await self._infer(message, call)
        except (V2Error, PipelineError) as error:
            raise _failure(error) from error

    def begin(self, message: Piece, call: GrpcCall, sink: ResponseSink) -> RequestHandle | None:
        """Begin a short request, or one of a known form; see `DirectMethod`."""
        if isinstance(message, bytes) and len(message) > SHORT_BYTES:
            return None
        caller = self._caller_info(call, call.time_left())
        try:
            if isinstance(message, bytes):
                return self._forms.begin(message, None, caller, sink)
            return self._forms.begin_on(message, raw_place(message)[0], caller, sink)
        except UnknownFormError:
            return None
        except (V2Error, PipelineError) as error:
            raise _ended(error, call) from error

    def reply(self, answer: Any, call: GrpcCall) -> Reply:
        """Return the written answer; see `DirectMethod`."""
        infer_call, response = answer
        written: bytes | list[Piece] | None = infer_call.written(response)
        if written is None:
            return self._finish(infer_call, response, call)
        if isinstance(written, bytes) or call.takes_pieces:
            return written
        return self._joined(written, call)

    async def _joined(self, pieces: list[Piece], call: GrpcCall) -> bytes:
        return (await self._offload.run(partial(joined, pieces), call.time_left()))[0]

    async def _placed(self, message: bytes, call: GrpcCall) -> memoryview:
        """Return a long message in memory that workers can read."""
        place = self._memory.place(len(message), raw_place(message)[1])
        try:
            await self._offload.run(partial(np.copyto, place, np.frombuffer(message, np.uint8)))
        except PipelineError as error:
            raise _failure(error) from error
        return place.data

    async def _finish(
        self, infer_call: InferCall, answer: Any, call: GrpcCall
    ) -> bytes | list[Piece]:
        """Write an answer of a form that is not known yet."""
        try:
            if is_short_answer(answer):
                response = infer_call.response(answer)
            else:
                read = partial(infer_call.response, answer)
                response, _ = await self._offload.run(read, call.time_left())
            infer_call.learn(answer, response)
            return await self._write_answer(response, call)
        except (V2Error, PipelineError) as error:
            raise _ended(error, call) from error

    def _caller_info(self, call: GrpcCall, left_s: float | None) -> CallerInfo:
        trace = call.header("traceparent") if self._takes_trace else ""
        return CallerInfo(left_s, trace, call.headers, GRPC)

    async def _infer(self, message: Piece, call: GrpcCall) -> bytes | list[Piece]:
        request, left_s = await self._read(message, call.time_left())
        learn = None
        if isinstance(message, memoryview) and not request.shared:
            start = raw_place(message)[0]
            learn = partial(self._forms.learn, bytes(message[:start])) if start else None
        del message
        self._views.check_unary(request.model_name, request.model_version, "ModelInfer RPC")
        try:
            response = await self._inference.infer(request, self._caller_info(call, left_s), learn)
        except V2Error as error:
            raise _error_for(error, call) from error
        return await self._write_answer(response, call)

    async def _write_answer(self, response: InferResponse, call: GrpcCall) -> bytes | list[Piece]:
        if not call.takes_pieces or weight(response.outputs) <= SHORT_BYTES:
            return await self._write(response, call, _written)
        write = partial(response_pieces, response)
        return (await self._offload.run(write, call.time_left()))[0]

    async def _write(
        self, response: InferResponse, call: GrpcCall, write: Callable[[InferResponse], bytes]
    ) -> bytes:
        if weight(response.outputs) <= SHORT_BYTES:
            return write(response)
        return (await self._offload.run(lambda: write(response), call.time_left()))[0]

    async def _read(
        self, message: Piece, left_s: float | None
    ) -> tuple[InferRequest, float | None]:
        if len(message) <= SHORT_BYTES:
            return read_message(bytes(message), self._limits), left_s
        read = partial(read_large_message, [message], self._limits)
        del message
        return await self._offload.run(read, left_s)

    def model_stream_infer(
        self, messages: AsyncIterator[bytes], call: GrpcCall
    ) -> AsyncGenerator[bytes, None]:
        """Answer the requests of a stream, which run side by side.

        If the client asks for it, the first error is the status that ends the stream.
        """
        answers = partial(self._stream_answers, call, call.header(ERRORS_END) == "true")
        return side_by_side(messages, answers)

    async def _stream_answers(
        self, call: GrpcCall, errors_end: bool, message: bytes, place: Place
    ) -> AsyncGenerator[bytes, None]:
        """Yield the answers to one request of a stream, also errors that do not end the stream.

        A model that answers in parts sends them when they are ready, between those to other
        requests.
        """
        try:
            request, left_s = await self._read(message, call.time_left())
            model, version = request.model_name, request.model_version
            if is_decoupled := self._views.is_decoupled(model, version):
                place.leave()
            wants_empty = request.parameters.get(WANTS_FINAL) is True
            empty = InferResponse(model, "", request.id, {}, {})
            caller = self._caller_info(call, left_s)
            answers = self._inference.answers(request, caller, place.entrance)
            del request
            has_ended = not is_decoupled
            async with aclosing(answers):
                async for response, goes_on in answers:
                    if errors_end and response.error is not None:
                        raise response.error
                    has_ended = has_ended or not goes_on
                    if not is_decoupled:
                        await place.come()
                    write = partial(_written_of_stream, is_final=not goes_on)
                    yield await self._write(response, call, write)
            if wants_empty and not has_ended:
                yield _written_of_stream(empty, is_final=True)
        except (V2Error, PipelineError) as error:
            failed = _error_for(error, call)
            if isinstance(failed, GrpcError):
                raise failed from error
            if errors_end:
                raise _failure(failed) from error
            await place.come()
            yield _failed_of_stream(str(failed), _id_of(message), is_final=True)


def _error_for(error: V2Error | PipelineError, call: GrpcCall) -> V2Error | GrpcError:
    """Return the error of an inference, in the form that its caller expects."""
    failure = v2_error(error)
    left_s = call.time_left()
    is_over = left_s is not None and left_s < _CLOCKS_DIFFER_S
    if failure.kind is not V2Status.UNAVAILABLE or not is_over:
        return failure
    # The client library raises this if its own clock notices the deadline first.
    return GrpcError(grpc.StatusCode.DEADLINE_EXCEEDED, f"Deadline Exceeded: {failure}")


def _ended(error: V2Error | PipelineError, call: GrpcCall) -> GrpcError:
    trailers = _error_for(error, call)
    return trailers if isinstance(trailers, GrpcError) else _failure(trailers)


def _id_of(message: bytes) -> str:
    """Return the id of a request, if the message is one."""
    try:
        return pb.ModelInferRequest.FromString(message).id
    except DecodeError:
        return ""


def _written(response: InferResponse) -> bytes:
    return joined(response_pieces(response))


def _failed_of_stream(text: str, request_id: str, is_final: bool) -> bytes:
    answer = pb.ModelStreamInferResponse(error_message=text)
    answer.infer_response.id = request_id
    answer.infer_response.parameters[_FINAL].bool_param = is_final
    return answer.SerializeToString()


def _written_of_stream(response: InferResponse, is_final: bool) -> bytes:
    if response.error is not None:
        return _failed_of_stream(str(response.error), response.id, is_final)
    parameters = {**response.parameters, _FINAL: is_final}
    pieces = response_pieces(msgspec.structs.replace(response, parameters=parameters))
    return joined((field_head(_IN_STREAM, sum(map(len, pieces))), *pieces))


def _unary(
    kind: type[_Request], answer: Callable[[_Request, GrpcCall], Awaitable[Message]]
) -> Unary:
    """Return `answer` as a function from bytes to bytes, with gRPC's statuses for errors."""

    async def method(message: bytes, call: GrpcCall) -> bytes:
        try:
            response = await answer(_parsed(kind, message), call)
        except (V2Error, PipelineError) as error:
            raise _failure(error) from error
        return response.SerializeToString()

    return method


def _check_repository(request: _RepositoryRequest) -> None:
    if request.repository_name:
        raise V2Error(V2Status.UNSUPPORTED, NO_REPOSITORY_NAME)


def _parsed(kind: type[_Request], message: bytes) -> _Request:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        name = kind.DESCRIPTOR.name
        raise invalid(f"the message is no {name}: {error}") from error


def _failure(error: V2Error | PipelineError) -> GrpcError:
    failure = v2_error(error)
    status: grpc.StatusCode = grpc.StatusCode[failure.kind.grpc_status]
    return GrpcError(status, str(failure), retry_after_s=failure.retry_after_s)
