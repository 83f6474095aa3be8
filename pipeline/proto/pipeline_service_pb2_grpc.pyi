# Types of what the generator for gRPC writes without any.
from collections.abc import Iterator
from typing import Any

import grpc

from pipeline.proto.pipeline_service_pb2 import Request, Response

GRPC_GENERATED_VERSION: str
GRPC_VERSION: str

class PipelineServiceStub:
    inference: grpc.UnaryUnaryMultiCallable[Request, Response]
    inference_stream: grpc.UnaryStreamMultiCallable[Request, Response]
    def __init__(self, channel: grpc.Channel) -> None: ...

class PipelineServiceServicer:
    def inference(self, request: Request, context: grpc.ServicerContext) -> Any: ...
    def inference_stream(self, request: Request, context: grpc.ServicerContext) -> Any: ...

class PipelineService:
    @staticmethod
    def inference(request: Request, target: str, *args: Any, **kwargs: Any) -> Response: ...
    @staticmethod
    def inference_stream(
        request: Request, target: str, *args: Any, **kwargs: Any
    ) -> Iterator[Response]: ...

def add_PipelineServiceServicer_to_server(
    servicer: PipelineServiceServicer, server: grpc.Server | Any
) -> None: ...
