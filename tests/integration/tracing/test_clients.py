"""The trace that our clients send along."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from grpc_peers import peer

from pipeline import PipelineClient
from pipeline.client import AsyncPipelineClient
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.tracing.context import (
    set_call_trace,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"


SPAN = "b7ad6b7169203331"


SAMPLED = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(autouse=True)
def no_trace_after() -> Iterator[None]:
    yield
    set_call_trace("")


def test_clients_take_the_trace_along():
    seen: list[str | None] = []

    def answer(_: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()).get("traceparent"))
        return Response().SerializeToString()

    async def ask_aio(endpoint: str) -> None:
        async with AsyncPipelineClient() as client:
            client.connect(endpoint)
            await client.predict({"x": 1})

    service = "baidu.paddle_serving.pipeline_serving.PipelineService"
    with peer(service, {"inference": answer}) as server, PipelineClient() as client:
        client.connect(server.endpoint)
        client.predict({"x": 1})
        set_call_trace(SAMPLED)
        client.predict({"x": 1})
        client.predict({"x": 1}, asyn=True).result()
        asyncio.run(ask_aio(server.endpoint))
    assert seen == [None, SAMPLED, SAMPLED, SAMPLED]
