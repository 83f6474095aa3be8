"""`inference_stream`: a Response for each part, of the server itself and through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from doubles import chain, wait_until
from streamed import EDGES, seen, streaming_server, temporary_folder

from pipeline import PipelineServer
from pipeline.errors import ErrorCode, UserCodeError
from pipeline.frontends.grpc.inference import SERVICE, TIMEOUT
from pipeline.frontends.parts import answers_to
from pipeline.proto.pipeline_service_pb2 import Request, Response

__all__ = ["seen"]
pytestmark = pytest.mark.usefixtures("grpc_is_up", "gateway_binary")

METHOD = f"/{SERVICE}/inference_stream"
PATIENCE_S = 30


@pytest.fixture(scope="module", params=EDGES)
def server(request: Any, module_logs: None) -> Iterator[PipelineServer]:
    with temporary_folder(), streaming_server(request.param) as running:
        yield running


@pytest.fixture
def channel(server: PipelineServer) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}", options) as result:
        yield result


def responses_to(
    channel: grpc.Channel, raw: bytes | None = None, metadata: Any = (), **pairs: Any
) -> Any:
    """The responses to a request, as they come."""
    call = channel.unary_stream(
        METHOD, request_serializer=None, response_deserializer=Response.FromString
    )
    texts = [str(value) for value in pairs.values()]
    message = Request(key=list(pairs), value=texts).SerializeToString() if raw is None else raw
    return call(message, timeout=PATIENCE_S, metadata=metadata)


def texts_of(responses: Any) -> list[str]:
    return [response.value[0] for response in responses if not response.err_no]


def test_each_part_is_a_response(channel):
    assert texts_of(responses_to(channel, n=100)) == [str(number) for number in range(100)]


def test_a_stream_without_parts_ends_well(channel):
    assert list(responses_to(channel, n=0)) == []


def test_a_part_is_there_before_the_next_one_is_made(channel, seen):
    responses = responses_to(channel, n=3, hold=2)
    assert texts_of([next(responses), next(responses)]) == ["0", "1"]
    assert not seen.closed.is_set()
    seen.go.set()
    assert texts_of(responses) == ["2"]


def test_large_parts_arrive_whole(channel):
    texts = texts_of(responses_to(channel, n=3, size=300_000))
    assert [text.rstrip(".") for text in texts] == ["0", "1", "2"]
    assert {len(text) for text in texts} == {300_000}


def test_an_error_in_the_middle_is_the_last_response(channel):
    *parts, last = responses_to(channel, n=5, fail=2)
    assert texts_of(parts) == ["0", "1"]
    assert last.err_no == UserCodeError.code
    assert "broken in the middle" in last.err_msg


def test_an_invalid_request_is_refused(channel):
    with pytest.raises(grpc.RpcError) as caught:
        list(responses_to(channel, raw=b"\xff\xff"))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_the_deadline_of_the_whole_request_ends_a_stream(channel, seen):
    *parts, last = responses_to(channel, metadata=[(TIMEOUT, "300m")], n=3, hold=1)
    assert texts_of(parts) == ["0"]
    assert last.err_no == ErrorCode.TIMEOUT
    seen.go.set()
    assert seen.closed.wait(PATIENCE_S)


def test_a_cancelled_call_closes_the_generator(channel, seen):
    responses = responses_to(channel)
    next(responses)
    responses.cancel()
    assert seen.closed.wait(PATIENCE_S)


def test_a_closed_connection_closes_the_generator(server, seen):
    with grpc.insecure_channel(
        f"127.0.0.1:{server.rpc_port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        next(responses_to(channel))
    assert seen.closed.wait(PATIENCE_S)


def test_a_client_that_does_not_read_pauses_the_generator(channel, seen):
    """64 KiB a part: what lies in buffers of both sides and the gateway is some MiB."""
    responses = responses_to(channel, size=65_536)
    next(responses)
    before = seen.made_at_rest()
    assert before < 1000
    for number in range(1, before + 50):
        assert next(responses).value[0].startswith(f"{number}.")
    responses.cancel()
    assert seen.closed.wait(PATIENCE_S)


@pytest.mark.parametrize("edge", EDGES)
def test_the_answer_of_a_unary_pipeline_is_one_part(edge, module_logs):
    with (
        temporary_folder(),
        streaming_server(edge, chain("a")) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.rpc_port}") as channel,
    ):
        (response,) = responses_to(channel, text="x")
        assert response.err_no == 0


@pytest.mark.parametrize("edge", EDGES)
def test_a_running_stream_has_the_grace_period_when_the_server_stops(edge, module_logs, seen):
    with (
        temporary_folder(),
        streaming_server(edge, stop_grace_period=20_000) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.rpc_port}") as channel,
        ThreadPoolExecutor() as pool,
    ):
        responses = responses_to(channel, n=3, hold=1)
        assert texts_of([next(responses)]) == ["0"]
        engine = running.executor
        stopping = pool.submit(running.stop)
        wait_until(lambda: not engine.is_ready)
        seen.go.set()
        assert texts_of(responses) == ["1", "2"]
        stopping.result(PATIENCE_S)


def test_the_unary_method_puts_the_parts_together(channel):
    call = channel.unary_unary(
        f"/{SERVICE}/inference",
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )
    assert call(Request(key=["n"], value=["3"]), timeout=PATIENCE_S).value[0] == "012"


class Played:
    """`Engine.begin`, whose request is answered by hand."""

    def __init__(self) -> None:
        self.taken = 0
        self.is_cancelled = False

    def __call__(self, raw: Any, timeout_s: Any, target: Any, sink: Any) -> Any:
        self.sink = sink
        return self

    def took_part(self, count: int = 1) -> None:
        self.taken += count

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_part_is_acknowledged_when_the_next_one_is_requested():
    async def main() -> None:
        played = Played()
        answers = answers_to(played, None)
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        played.sink.add(["0", "1"])
        assert await first == ("0", True)
        assert played.taken == 0
        assert await anext(answers) == ("1", True)
        assert played.taken == 1
        played.sink.end("error")
        assert await anext(answers) == ("error", False)
        assert played.taken == 2
        assert [answer async for answer in answers] == []

    asyncio.run(main())


def test_closing_the_answers_cancels_the_request():
    async def main() -> None:
        played = Played()
        answers = answers_to(played, None)
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        played.sink.add(["0"])
        await first
        assert not played.is_cancelled
        await answers.aclose()
        assert played.is_cancelled

    asyncio.run(main())
