"""The v2 protocol over gRPC: methods, statuses, streams."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from functools import partial

import grpc
import numpy as np
import pytest
from doubles import server_for, settle, virtual
from v2_doubles import Double, Server, double, running, shown

from pipeline import PipelineServer, RequestOp
from pipeline.data import Tensor
from pipeline.frontends.grpc.server import GrpcError
from pipeline.frontends.v2.grpc import inference_service
from pipeline.frontends.v2.side_by_side import AHEAD, WAITING_BYTES
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays


class Call:
    """A call as a service sees it, `left` seconds before its deadline."""

    takes_pieces = False

    def __init__(self, left=None, headers=None):
        self.end = None if left is None else asyncio.get_running_loop().time() + left
        self.headers = headers or {}

    def time_left(self):
        if self.end is None:
            return None
        return max(self.end - asyncio.get_running_loop().time(), 0.0)

    def header(self, name):
        return self.headers.get(name, "")


def infer_message(*values, model="svc", name="x", request_id="", dtype=np.float32):
    message = pb.ModelInferRequest(model_name=model, id=request_id)
    array = np.array(values, dtype)
    add_tensor(message.inputs, message.raw_input_contents, name, array)
    return message


def outputs_of(response):
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    return {name: array.tolist() for name, array in arrays.items()}


class Service:
    """The service over a double's engine."""

    def __init__(self, server):
        self.server = server
        self.service = inference_service(server.models)

    async def ask(self, method, message=None, left=None):
        raw = b"" if message is None else message
        raw = raw if isinstance(raw, bytes) else raw.SerializeToString()
        answer = await self.service.methods[method](raw, Call(left))
        kind = getattr(pb, f"{method}Response")
        return kind.FromString(answer)

    async def refused(self, *args, **more):
        with pytest.raises(GrpcError) as caught:
            await self.ask(*args, **more)
        return caught.value.status, str(caught.value)

    def stream(self, messages, left=None, headers=None):
        return self.service.streams["ModelStreamInfer"](messages, Call(left, headers))


called = partial(shown, Service, "service")


# Unary --------------------------------------------------------------------------------------


@called()
async def test_the_service_has_the_protocols_name(service):
    assert service.service.name == SERVICE == "inference.GRPCInferenceService"


@called()
async def test_states_are_returned(service):
    assert (await service.ask("ServerLive")).live
    assert (await service.ask("ServerReady")).ready
    assert (await service.ask("ModelReady", pb.ModelReadyRequest(name="double"))).ready
    assert not (await service.ask("ModelReady", pb.ModelReadyRequest(name="nope"))).ready
    service.server.snapshots = []
    assert not (await service.ask("ServerReady")).ready


@called()
async def test_server_model_and_configuration_are_described(service):
    server = await service.ask("ServerMetadata")
    assert "statistics" in server.extensions
    metadata = await service.ask("ModelMetadata", pb.ModelMetadataRequest(name="double"))
    assert (metadata.name, list(metadata.versions)) == ("double", ["1"])
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("x", "FP32", [-1])]
    answer = await service.ask("ModelConfig", pb.ModelConfigRequest(name="svc", version="1"))
    assert answer.config.platform == "ensemble"
    assert [step.model_name for step in answer.config.ensemble_scheduling.step] == ["double"]


@called()
async def test_statistics_and_the_index_list_all_models(service):
    answer = await service.ask("ModelStatistics")
    assert [stats.name for stats in answer.model_stats] == ["double", "svc"]
    one = await service.ask("ModelStatistics", pb.ModelStatisticsRequest(name="svc"))
    assert one.model_stats[0].inference_stats.success.count == 2
    index = await service.ask("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
    assert [(m.name, m.version, m.state) for m in index.models] == [
        ("double", "1", "READY"),
        ("svc", "1", "READY"),
    ]


@called()
async def test_a_model_answers(service):
    response = await service.ask("ModelInfer", infer_message(1, 2, request_id="7"))
    assert (response.model_name, response.model_version, response.id) == ("svc", "1", "7")
    assert outputs_of(response) == {"y": [2.0, 4.0]}
    assert not response.parameters


@pytest.mark.parametrize(
    ("method", "message", "status", "text"),
    [
        (
            "ModelMetadata",
            pb.ModelMetadataRequest(name="nope"),
            "NOT_FOUND",
            "Request for unknown model: 'nope' is not found",
        ),
        (
            "ModelConfig",
            pb.ModelConfigRequest(name="svc", version="9"),
            "NOT_FOUND",
            "Request for unknown model: 'svc' version 9 is not found",
        ),
        (
            "ModelStatistics",
            pb.ModelStatisticsRequest(name="nope"),
            "INVALID_ARGUMENT",
            "requested model 'nope' is not available",
        ),
        (
            "ModelStatistics",
            pb.ModelStatisticsRequest(name="svc", version="abc"),
            "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'abc' (details: stol), "
            "version should be an integral value > 0",
        ),
        (
            "ModelReady",
            pb.ModelReadyRequest(name="svc", version="abc"),
            "INVALID_ARGUMENT",
            "version should be an integral value > 0",
        ),
        (
            "RepositoryIndex",
            pb.RepositoryIndexRequest(repository_name="x"),
            "UNIMPLEMENTED",
            "'repository_name' specification is not supported",
        ),
        ("ModelInfer", infer_message(1, model="nope"), "NOT_FOUND", "unknown model: 'nope'"),
        ("ModelInfer", infer_message(1, model="double", name="z"), "INVALID_ARGUMENT", "'z'"),
        ("ModelInfer", pb.ModelInferRequest(raw_input_contents=[b""]), "INVALID_ARGUMENT", "raw"),
        ("ModelInfer", b"\xff", "INVALID_ARGUMENT", "the message is no ModelInferRequest"),
        ("RepositoryModelLoad", b"", "UNAVAILABLE", "is not allowed"),
        ("RepositoryModelUnload", b"", "UNAVAILABLE", "is not allowed"),
        ("SystemSharedMemoryRegister", b"", "UNIMPLEMENTED", "shared memory is disabled"),
        ("CudaSharedMemoryRegister", b"", "INVALID_ARGUMENT", "GPUs not supported"),
        (
            "TraceSetting",
            pb.TraceSettingRequest(model_name="nope"),
            "INVALID_ARGUMENT",
            "Request for unknown model : nope",
        ),
        (
            "LogSettings",
            pb.LogSettingsRequest(settings={"log_file": {"string_param": "x"}}),
            "UNIMPLEMENTED",
            "log file location can not be updated through network protocol",
        ),
    ],
)
@called()
async def test_errors_have_gRPCs_status_and_tritons_text(service, method, message, status, text):
    result, said = await service.refused(method, message)
    assert result is grpc.StatusCode[status]
    assert text in said


@called()
async def test_the_callers_deadline_holds(service):
    service.server.engine.pools["double"].service_s = 5.0
    status, text = await service.refused("ModelInfer", infer_message(1), left=1.0)
    assert status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "Deadline Exceeded: " in text


@called(timeout=60000)
async def test_a_request_that_has_less_time_than_its_call_is_unavailable(service):
    service.server.engine.pools["double"].service_s = 5.0
    message = infer_message(1)
    message.parameters["timeout"].int64_param = 1_000_000
    for left in (None, 3.0):
        status, text = await service.refused("ModelInfer", message, left=left)
        assert status is grpc.StatusCode.UNAVAILABLE
        assert "deadline" in text


@virtual
async def test_the_callers_trace_is_passed_on():
    server, seen = Server(double()), []
    server.engine.watch(begin_trace=lambda data_id, caller: seen.append(caller) or "")
    async with server.engine:
        infer = Service(server).service.methods["ModelInfer"]
        await infer(infer_message(1).SerializeToString(), Call(headers={"traceparent": "00-1"}))
    assert seen == ["00-1"]


# Streams ------------------------------------------------------------------------------------


async def sent(*messages):
    for message in messages:
        yield message if isinstance(message, bytes) else message.SerializeToString()


def parsed(answer):
    response = pb.ModelStreamInferResponse.FromString(answer)
    assert response.infer_response.parameters["triton_final_response"].bool_param
    return response


@called()
async def test_a_stream_ends_with_its_deadline(service):
    pool = service.server.engine.pools["double"]
    answers = service.stream(sent(infer_message(1), infer_message(2)), left=1.0)
    assert not parsed(await anext(answers)).error_message
    pool.service_s = 5.0
    answers = service.stream(sent(infer_message(1), infer_message(2)), left=1.0)
    with pytest.raises(GrpcError) as caught:
        await anext(answers)
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED


@virtual
async def test_the_answers_of_a_stream_have_the_order_of_the_requests():
    async with running(double()) as server:
        service = Service(server)
        pool = server.engine.pools["double"]
        pool.service_s = None
        answers = service.stream(sent(infer_message(1, request_id="a"), b"\xff"))
        first = asyncio.ensure_future(anext(answers))
        await settle()
        assert not first.done(), "the error was known first, but it is the second answer"
        pool.release()
        response = parsed(await first).infer_response
        assert (response.id, outputs_of(response)) == ("a", {"y": [2.0]})
        assert "no ModelInferRequest" in parsed(await anext(answers)).error_message
        with pytest.raises(StopAsyncIteration):
            await anext(answers)


@called()
async def test_an_error_in_a_stream_is_an_answer_and_the_stream_continues(service):
    messages = sent(
        infer_message(1, model="nope", request_id="a"), infer_message(1, request_id="b")
    )
    failed, good = [parsed(answer) async for answer in service.stream(messages)]
    assert failed.error_message == "Request for unknown model: 'nope' is not found"
    assert failed.infer_response.id == "a"
    assert good.error_message == ""
    assert good.infer_response.id == "b"


@pytest.mark.parametrize("said", ["true", "false", "1"])
@called()
async def test_an_error_ends_a_stream_whose_client_requests_a_status(service, said):
    messages = sent(infer_message(1), infer_message(1, model="nope"), infer_message(2))
    answers = service.stream(messages, headers={"triton_grpc_error": said})
    assert outputs_of(parsed(await anext(answers)).infer_response) == {"y": [2.0]}
    if said != "true":
        assert [bool(parsed(answer).error_message) async for answer in answers] == [True, False]
        return
    with pytest.raises(GrpcError, match="Request for unknown model: 'nope' is not found") as caught:
        await anext(answers)
    assert caught.value.status is grpc.StatusCode.NOT_FOUND
    with pytest.raises(StopAsyncIteration):
        await anext(answers)


@virtual
async def test_requests_of_a_stream_run_concurrently_up_to_a_limit():
    async with running(double(), queue_size=1000) as server:
        pool = server.engine.pools["double"]
        pool.service_s = None
        read = 0

        async def endless():
            nonlocal read
            while True:
                read += 1
                yield infer_message(read).SerializeToString()

        answers = Service(server).stream(endless())
        first = asyncio.ensure_future(anext(answers))
        await settle(1000)
        assert server.engine.executor.inside + server.engine.executor.waiting == AHEAD
        most = AHEAD + WAITING_BYTES // len(infer_message(1).SerializeToString())
        assert AHEAD < read < most, "those behind wait, 4 MiB of them"
        before = read
        await settle()
        assert read == before
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await settle()
        assert server.engine.executor.inside == server.engine.executor.waiting == 0
        pool.release()


@called()
async def test_a_stream_that_breaks_ends_after_the_answers_before(service):
    async def breaks():
        yield infer_message(1).SerializeToString()
        raise ConnectionError("gone")

    answers = service.stream(breaks())
    assert outputs_of(parsed(await anext(answers)).infer_response) == {"y": [2.0]}
    with pytest.raises(ConnectionError, match="gone"):
        await anext(answers)


@virtual
async def test_a_client_that_stops_reading_leaves_no_requests():
    async with running(double()) as server:
        pool = server.engine.pools["double"]
        answers = Service(server).stream(sent(*[infer_message(n) for n in range(5)]))
        await anext(answers)
        pool.service_s = None
        await answers.aclose()
        await settle()
        assert server.engine.executor.inside == 0
        assert len(asyncio.all_tasks()) == 1


@virtual
async def test_late_errors_of_a_closed_stream_are_not_logged(caplog):
    class Late(Call):
        """Its time is over after the first request."""

        times = iter([None])

        def time_left(self):
            return next(self.times, 0.0)

    async with running(double()) as server:
        messages = sent(*[infer_message(n) for n in range(5)])
        answers = Service(server).service.streams["ModelStreamInfer"](messages, Late())
        await anext(answers)
        await settle()
        await answers.aclose()
    gc.collect()
    assert caplog.records == []


# On the port --------------------------------------------------------------------------------


class Numbers(RequestOp):
    input_tensors = (Tensor("x", "FP32", (-1,)),)


@pytest.fixture(scope="module")
def server(module_logs: None) -> Iterator[PipelineServer]:
    with server_for(Double("double", Numbers())) as server:
        yield server


@pytest.mark.usefixtures("grpc_is_up")
def test_the_port_of_the_pipeline_speaks_it_too(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        answer = infer(infer_message(1, 2).SerializeToString(), timeout=30)
        assert outputs_of(pb.ModelInferResponse.FromString(answer)) == {"y": [2.0, 4.0]}
        with pytest.raises(grpc.RpcError) as caught:
            infer(infer_message(1, model="nope").SerializeToString(), timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        messages = [infer_message(n, request_id=str(n)).SerializeToString() for n in range(20)]
        answers = [parsed(answer).infer_response for answer in stream(iter(messages), timeout=30)]
        assert [answer.id for answer in answers] == [str(n) for n in range(20)]
        assert outputs_of(answers[3]) == {"y": [6.0]}


@pytest.mark.usefixtures("grpc_is_up")
@pytest.mark.parametrize("name", ["n" * 1_000_000, "é\n" * 300_000])
def test_an_error_keeps_its_status_however_much_of_the_request_it_names(server, name):
    """A status travels in a header, and of large ones only its peer's own complaint is left."""
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            infer(infer_message(1, model=name).SerializeToString(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    details = caught.value.details()
    assert details.startswith(f"Request for unknown model: '{name[:20]}")
    assert details.endswith("...")
