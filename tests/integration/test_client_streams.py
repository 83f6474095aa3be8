"""`predict_stream` of both clients, against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import grpc
import pytest
from doubles import chain, server_for, wait_until
from speaking import Stage, speaking

from pipeline import AsyncPipelineClient, PipelineClient, PipelineServer
from pipeline.errors import ClosedError


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def server(
    stage: Stage, module_logs: None, request: pytest.FixtureRequest
) -> Iterator[PipelineServer]:
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    with speaking(stage, edge=request.param) as server:
        yield server


@pytest.fixture
def client(server: PipelineServer) -> Iterator[PipelineClient]:
    with PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        yield client


@pytest.fixture(autouse=True)
def gate(stage: Stage) -> Iterator[None]:
    stage.gate.clear()
    yield
    stage.gate.set()


def test_the_parts_come_one_by_one(client, stage):
    with client.predict_stream({"n": "3", "hold": "1"}) as parts:
        assert next(parts)["text"] == 0
        stage.gate.set()
        assert [part["text"] for part in parts] == [1, 2]
        assert list(parts) == []


def test_fetch_cuts_each_part(client):
    with client.predict_stream({"n": "2"}, fetch=["text"]) as parts:
        assert [part.keys() for part in parts] == [["text"], ["text"]]


def test_an_error_is_the_last_part(client):
    with client.predict_stream({"n": "3", "fail": "1"}) as parts:
        first, last = parts
    assert (first.err_no, first["text"]) == (0, 0)
    assert "no more" in last.err_msg


def test_closing_a_stream_closes_its_generator(client, stage):
    closed = stage.closed
    with client.predict_stream({"n": str(10**9)}) as parts:
        next(parts)
    wait_until(lambda: stage.closed == closed + 1)
    assert list(parts) == []
    parts.close()


def test_another_thread_may_close_it(client, stage):
    parts = client.predict_stream({"n": str(10**9), "hold": "1"})
    next(parts)
    rest: list[object] = []
    reading = threading.Thread(target=lambda: rest.extend(parts))
    reading.start()
    parts.close()
    reading.join(30)
    assert (reading.is_alive(), rest) == (False, [])


def test_closing_the_client_ends_its_streams(server, stage):
    client = PipelineClient()
    client.connect([f"127.0.0.1:{server.rpc_port}"])
    closed = stage.closed
    parts = client.predict_stream({"n": str(10**9)})
    next(parts)
    client.close()
    with pytest.raises(grpc.RpcError):
        for _ in parts:
            pass
    wait_until(lambda: stage.closed == closed + 1)


def test_the_deadline_is_of_the_whole_stream(client):
    parts = client.predict_stream({"n": "2", "hold": "1"}, timeout=0.5)
    assert next(parts)["text"] == 0
    ends: list[object] = []
    try:
        ends.append(next(parts).err_no)
    except grpc.RpcError as error:
        ends.append(error.code())
    assert ends[0] in (6000, grpc.StatusCode.DEADLINE_EXCEEDED)  # whichever is quicker


def test_a_pipeline_without_a_stream_gives_one_part():
    with server_for(chain("a")) as server, PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        whole = client.predict({"x": "1"})
        with client.predict_stream({"x": "1"}) as parts:
            assert [part.to_dict() for part in parts] == [whole.to_dict()]


def test_what_cannot_be_sent_or_reached():
    client = PipelineClient()
    with pytest.raises(ClosedError):
        client.predict_stream({})
    client.connect(["127.0.0.1:1"])
    with pytest.raises(TypeError):
        client.predict_stream({"a": object()})
    with pytest.raises(grpc.RpcError):
        next(client.predict_stream({"a": "1"}, timeout=5))
    client.close()


def test_asyncio(server, stage):
    async def main() -> None:
        async with AsyncPipelineClient() as client:
            client.connect([f"127.0.0.1:{server.rpc_port}"])
            async with client.predict_stream({"n": "3", "hold": "1"}) as parts:
                assert (await anext(parts))["text"] == 0
                stage.gate.set()
                assert [part["text"] async for part in parts] == [1, 2]
                assert [part async for part in parts] == []

    asyncio.run(main())


def test_asyncio_close_and_cancel(server, stage):
    async def main() -> None:
        async with AsyncPipelineClient() as client:
            client.connect([f"127.0.0.1:{server.rpc_port}"])
            closed = stage.closed
            async with client.predict_stream({"n": str(10**9)}) as parts:
                await anext(parts)
            assert [part async for part in parts] == []
            await asyncio.to_thread(wait_until, lambda: stage.closed == closed + 1)

            parts = client.predict_stream({"n": str(10**9), "hold": "1"})
            await anext(parts)
            reading = asyncio.ensure_future(anext(parts, None))
            await asyncio.sleep(0)
            await parts.close()
            assert await reading is None

            parts = client.predict_stream({"n": str(10**9), "hold": "1"})
            await anext(parts)
            reading = asyncio.ensure_future(anext(parts))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            stage.gate.set()
            await asyncio.to_thread(wait_until, lambda: stage.closed == closed + 3)

    asyncio.run(main())
