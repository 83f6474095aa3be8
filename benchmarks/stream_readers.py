"""Slow readers of a server's streams by its doors: each takes a part every so many seconds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np

from pipeline import AsyncPipelineClient
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor

NEXT = Callable[[], Awaitable[Any]]
"""Awaits the next part of a stream."""

_STREAMS_OF_A_CHANNEL = 50  # HTTP/2 servers allow about 100 concurrent streams
_NO_MEMORY = [("grpc.use_local_subchannel_pool", 1)]
_SMALL_WINDOWS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2**16)]


@contextlib.asynccontextmanager
async def by_client(endpoint: str, count: int) -> AsyncIterator[list[NEXT]]:
    """Open `count` streams by the client: over HTTP, or over gRPC."""
    async with contextlib.AsyncExitStack() as stack:
        streams: list[NEXT] = []
        for number in range(count):
            if number % _STREAMS_OF_A_CHANNEL == 0:
                client = await stack.enter_async_context(AsyncPipelineClient())
                client.connect(endpoint)
            parts = await stack.enter_async_context(client.predict_stream({"a": "b"}))
            streams.append(parts.__anext__)
        yield streams


@contextlib.asynccontextmanager
async def by_v2(
    endpoint: str, count: int, options: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[list[NEXT]]:
    """Open `count` streams of v2's gRPC, each with one request; `options` of their channels."""
    request = pb.ModelInferRequest(model_name="endless")
    value = np.array([b"b"], object)
    add_tensor(request.inputs, request.raw_input_contents, "a", value)
    async with contextlib.AsyncExitStack() as stack:
        streams: list[NEXT] = []
        for number in range(count):
            if number % _STREAMS_OF_A_CHANNEL == 0:
                opened = grpc.aio.insecure_channel(endpoint, [*_NO_MEMORY, *options])
                channel = await stack.enter_async_context(opened)
                method = channel.stream_stream(
                    f"/{SERVICE}/ModelStreamInfer",
                    pb.ModelInferRequest.SerializeToString,
                    pb.ModelStreamInferResponse.FromString,
                )
            call = method()
            await call.write(request)
            stack.callback(call.cancel)
            streams.append(call.read)
        yield streams


OPENS = {
    "sse": by_client,
    "grpc": by_client,
    "v2": by_v2,
    "v2-64k": functools.partial(by_v2, options=_SMALL_WINDOWS),  # which hold 64 KiB of a stream
}


def endpoint_of(door: str, rpc_port: int, http_port: int) -> str:
    """Return what a door's streams are opened with."""
    if door == "sse":
        return f"http://127.0.0.1:{http_port}/streams"
    return f"127.0.0.1:{rpc_port}"


class Readers:
    """Takes a part of each stream every `pause_s` seconds, until it is stopped."""

    def __init__(self, streams: list[NEXT], pause_s: float) -> None:
        self.parts = 0
        self._pause_s = pause_s
        self._tasks = [asyncio.ensure_future(self._read(next_part)) for next_part in streams]

    async def _read(self, next_part: NEXT) -> None:
        while True:
            await next_part()
            self.parts += 1
            await asyncio.sleep(self._pause_s)

    def check(self) -> None:
        """Raise what a reader ended with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """End the readers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def first_parts(door: str, endpoint: str, count: int) -> list[float]:
    """Return how long new callers waited for their first part, one after the other, in s."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        async with OPENS[door](endpoint, 1) as (next_part,):
            await next_part()
        taken.append(time.perf_counter() - began)
    return taken
