"""The floor for gRPC: an echo of the same proto on grpc.aio and uvloop, with nothing behind it."""

from __future__ import annotations

from typing import Any

import grpc
import uvloop

from benchmarks.services.ports import GRPC_PORT
from pipeline.proto import pipeline_service_pb2 as pb
from pipeline.proto import pipeline_service_pb2_grpc as pb_grpc


class Echo(pb_grpc.PipelineServiceServicer):
    async def inference(self, request: pb.Request, context: Any) -> pb.Response:
        return pb.Response(key=request.key, value=request.value, tensors=request.tensors)


async def main() -> None:
    server = grpc.aio.server()
    pb_grpc.add_PipelineServiceServicer_to_server(Echo(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{GRPC_PORT}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
