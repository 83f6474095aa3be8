"""A general model service that says the same to every request, over brpc and over gRPC.

What it costs is little, so that what is seen of a client is the client.
"""

from __future__ import annotations

import asyncio
from typing import cast

import grpc
import numpy as np
import uvloop

from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline.proto.brpc.frames import SERVICE, FrameReader, pack, response_meta
from pipeline.proto.brpc.general_model import value_to_tensor
from pipeline.proto.general_model_pb2 import ModelOutput, Response

ANSWER = Response(
    outputs=[
        ModelOutput(
            tensor=[value_to_tensor("price", "price", np.ones((1, 1), np.float32))],
            engine_name="bare",
        )
    ]
).SerializeToString()


class Frames(asyncio.Protocol):
    """One connection that speaks baidu_std."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = FrameReader()

    def data_received(self, data: bytes) -> None:
        frames = self._reader.feed(data)
        answers = (pack(response_meta(frame.meta.correlation_id), ANSWER) for frame in frames)
        self._transport.write(b"".join(answers))


async def main() -> None:
    loop = asyncio.get_running_loop()
    brpc = await loop.create_server(Frames, "127.0.0.1", HTTP_PORT)
    server = grpc.aio.server()

    async def inference(request: bytes, context: object) -> bytes:
        return ANSWER

    method = grpc.unary_unary_rpc_method_handler(inference)
    handler = grpc.method_handlers_generic_handler(SERVICE, {"inference": method})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{GRPC_PORT}")
    await server.start()
    await brpc.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
