"""Whoever terminates gRPC answers as the conformance table says."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from conformance_grpc import INFERENCE, UNLIMITED, Case, ask, infer, request, streamed
from conformance_grpc_edges import Edge, edges
from conformance_grpc_table import CASES
from conformance_server import HELD, Holder, conformance_server
from doubles import wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pipeline import PipelineServer
from pipeline.frontends.grpc.inference import SERVICE
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.v2.codec import SERVICE as V2

Status = health_pb2.HealthCheckResponse
STREAM = f"/{V2}/ModelStreamInfer"


@pytest.fixture(scope="module", params=[*edges(), pytest.param(Edge.FLEET, id="fleet")])
def edge(request: pytest.FixtureRequest) -> Edge:
    chosen: Edge = request.param
    return chosen


@pytest.fixture(scope="module")
def server(
    edge: Edge,
    request: pytest.FixtureRequest,
    holder: Holder,
    module_logs: None,
) -> Iterator[PipelineServer]:
    settings = edge.settings(request)
    with conformance_server(holder, timeout=60_000, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def port(
    edge: Edge, server: PipelineServer, request: pytest.FixtureRequest, module_logs: None
) -> Iterator[int]:
    with edge.port(server, request) as port:
        yield port


@pytest.fixture(scope="module")
def channel(port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", UNLIMITED) as channel:
        yield channel


@pytest.fixture
def over(edge: Edge) -> tuple[grpc.StatusCode, ...]:
    """What a caller hears at its deadline.

    grpc-go resets the stream then, which is CANCELLED to a caller whose clock is not there yet.
    """
    if edge is Edge.EMBEDDED:
        return (grpc.StatusCode.DEADLINE_EXCEEDED,)
    return (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@pytest.fixture
def held(holder: Holder) -> Iterator[Holder]:
    yield holder
    holder.release()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_server_answers_as_in_the_table(channel, held, case: Case):
    case.hold(channel)


def test_no_case_is_there_twice():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


# Time, and callers who leave ----------------------------------------------------------------


def test_a_deadline_that_passes_ends_the_call_and_frees_its_place(server, channel, held, over):
    for method, message in ((INFERENCE, request("hold")), (f"/{V2}/ModelInfer", infer(HELD))):
        heard = ask(channel, method, message, timeout_s=0.05)
        if heard.answer is not None:  # the server's clock was quicker than the client's
            assert Response.FromString(heard.answer).err_no == 6000
        else:
            assert heard.status in over
        wait_until(lambda: server.executor.inside == 0)
        held.release()


@pytest.mark.parametrize(
    ("method", "message"),
    [(INFERENCE, request("hold")), (f"/{V2}/ModelInfer", infer(HELD))],
    ids=["pipeline", "v2"],
)
def test_a_cancellation_frees_the_place_of_its_request(server, channel, held, method, message):
    calls = [channel.unary_unary(method).future(message, timeout=60) for _ in range(8)]
    wait_until(lambda: server.executor.inside == 8)
    for call in calls:
        assert call.cancel()
    wait_until(lambda: server.executor.inside == server.executor.waiting == 0)


def test_a_channel_that_breaks_gives_up_all_its_places(server, port, held):
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", alone) as channel:
        calls = [
            channel.unary_unary(INFERENCE).future(request("hold"), timeout=60) for _ in range(4)
        ]
        wait_until(lambda: server.executor.inside == 4)
    wait_until(lambda: server.executor.inside == 0)
    assert all(call.code() is grpc.StatusCode.CANCELLED for call in calls)


# Many, and other forms of calls -------------------------------------------------------------


def test_many_calls_share_a_channel(server, channel):
    call = channel.unary_unary(INFERENCE, Request.SerializeToString, Response.FromString)
    asked = [
        call.future(Request(key=["n"], value=[str(number)]), timeout=60) for number in range(500)
    ]
    assert [one.result().value for one in asked] == [[str(number)] for number in range(500)]
    wait_until(lambda: server.executor.inside == 0)


def test_small_calls_pass_large_ones(channel):
    call = channel.unary_unary(INFERENCE)
    large = [call.future(request(a="x" * 2_000_000), timeout=60) for _ in range(4)]
    small = [call.future(request(n=str(number)), timeout=60) for number in range(50)]
    assert [one.result() for one in small] == [_echoed(n=str(number)) for number in range(50)]
    assert {len(one.result()) for one in large} == {len(_echoed(a="x" * 2_000_000))}


def _echoed(**pairs: str) -> bytes:
    return Response(key=list(pairs), value=list(pairs.values())).SerializeToString()


def test_of_a_unary_method_that_is_sent_two_messages_the_first_counts(channel):
    answers = channel.stream_stream(INFERENCE)(iter([request(a="1"), request(a="2")]), timeout=30)
    assert list(answers) == [_echoed(a="1")]


def test_an_answer_has_only_requested_metadata(channel):
    answer, call = channel.unary_unary(INFERENCE).with_call(request(a="1"), timeout=30)
    assert answer == _echoed(a="1")
    assert not list(call.initial_metadata())
    assert not list(call.trailing_metadata())


# Streams ------------------------------------------------------------------------------------


def test_a_stream_answers_in_order(channel):
    messages = (infer(number, request_id=str(number)) for number in range(200))
    answers = [streamed(answer) for answer in channel.stream_stream(STREAM)(messages, timeout=60)]
    assert answers == [(str(number), "", [float(number)]) for number in range(200)]


def test_an_error_in_a_stream_is_an_answer_and_the_stream_continues(channel):
    messages = [infer(1, model="nope", request_id="a"), b"\xff", infer(2, request_id="c")]
    first, second, third = map(streamed, channel.stream_stream(STREAM)(iter(messages), timeout=30))
    assert first == ("a", "Request for unknown model: 'nope' is not found", [])
    assert second[1].startswith("the message is no ModelInferRequest: ")
    assert third == ("c", "", [2.0])


def test_a_stream_of_large_tensors_is_returned_complete(channel):
    numbers = [float(number) for number in range(100_000)]
    messages = (infer(*numbers, request_id=str(number)) for number in range(8))
    answers = channel.stream_stream(STREAM)(messages, timeout=60)
    assert [streamed(answer) for answer in answers] == [
        (str(number), "", numbers) for number in range(8)
    ]


def test_an_empty_stream_ends_well(channel):
    assert list(channel.stream_stream(STREAM)(iter([]), timeout=30)) == []


def test_a_stream_with_a_message_above_the_limit_ends_so(channel):
    messages = iter([infer(1), infer(*[1.0] * 2_000_000)])
    answers = channel.stream_stream(STREAM)(messages, timeout=30)
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "eceived message larger than max" in caught.value.details()


def test_a_caller_answers_while_its_stream_is_open(channel):
    """Each request is sent when the one before it is answered."""
    turn = threading.Semaphore(1)

    def messages() -> Iterator[bytes]:
        for number in range(1, 6):
            assert turn.acquire(timeout=30)
            yield infer(number)

    answers = channel.stream_stream(STREAM)(messages(), timeout=60)
    for number, answer in enumerate(answers, 1):
        assert streamed(answer) == ("", "", [float(number)])
        turn.release()
    assert number == 5


def test_a_cancelled_stream_frees_its_places(server, channel, held):
    def endless() -> Iterator[bytes]:
        while True:
            yield infer(HELD)

    answers = channel.stream_stream(STREAM)(endless(), timeout=60)
    wait_until(lambda: server.executor.inside > 3)
    answers.cancel()
    wait_until(lambda: server.executor.inside == server.executor.waiting == 0)


def test_a_streams_deadline_ends_it(server, channel, held, over):
    answers = channel.stream_stream(STREAM)(iter([infer(HELD)]), timeout=0.1)
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    assert caught.value.code() in over
    wait_until(lambda: server.executor.inside == 0)


def test_a_client_that_reads_no_answers_pauses_its_requests(server, channel):
    """Of an endless stream whose answers nobody takes, a bounded number is read."""
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield infer(*[float(sent)] * 50_000)

    answers = channel.stream_stream(STREAM)(endless(), timeout=60)
    seen = -1
    while seen != sent:  # the stream continues as long as its reader takes parts
        seen = sent
        wait_until(lambda: server.executor.inside == 0)
        for _ in range(200):
            assert server.executor.inside <= 64
    assert next(answers)
    answers.cancel()
    wait_until(lambda: server.executor.inside == 0)


# Health and reflection ----------------------------------------------------------------------


def test_health_knows_the_server_and_its_services_only(channel):
    check = health_pb2_grpc.HealthStub(channel).Check
    for service in ("", SERVICE, V2):
        request = health_pb2.HealthCheckRequest(service=service)
        assert check(request, timeout=30).status == Status.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check(health_pb2.HealthCheckRequest(service="other"), timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "unknown service"


def test_health_can_be_watched(channel):
    watch = health_pb2_grpc.HealthStub(channel).Watch
    for service, status in ((V2, Status.SERVING), ("other", Status.SERVICE_UNKNOWN)):
        reported = watch(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert next(reported).status == status
        reported.cancel()


def reflected(channel: grpc.Channel, **asked: str) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    question = reflection_pb2.ServerReflectionRequest(**asked)
    (answer,) = stub.ServerReflectionInfo(iter([question]), timeout=30)
    return answer


def test_reflection_lists_the_services(channel):
    results = {
        one.name for one in reflected(channel, list_services="").list_services_response.service
    }
    assert results >= {
        SERVICE,
        V2,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_reflection_has_the_same_messages_in_both_versions(channel):
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=V2)
    (answer,) = ask(iter([question]), timeout=30)
    assert answer == reflected(channel, file_containing_symbol=V2)


@pytest.mark.parametrize(
    "name",
    [
        SERVICE,
        "baidu.paddle_serving.pipeline_serving.Request",
        "pipeline.inference_v2.ModelInferRequest",
        "grpc.health.v1.Health",
        f"{SERVICE}.inference",
        "grpc.health.v1.Health.Check",
        V2,
        f"{V2}.ModelStreamInfer",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo",
    ],
)
def test_reflection_describes_known_symbols(channel, name):
    answer = reflected(channel, file_containing_symbol=name)
    assert answer.file_descriptor_response.file_descriptor_proto


def test_reflection_refuses_unknown_symbols(channel):
    names = "no.Such", f"{V2}.NoSuch", f"{SERVICE}.inference.NoSuch"
    asks = [{"file_containing_symbol": name} for name in names]
    for asked in (*asks, {"file_by_filename": "nope.proto"}):
        answer = reflected(channel, **asked)
        assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
