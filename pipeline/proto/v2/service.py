"""The service of the v2 protocol, as gRPC's reflection describes it.

No generated module declares it: other clients of the protocol register its name in the process.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE


def service_file() -> FileDescriptorProto:
    """Return a .proto file with the service: a method for each pair of messages, and the stream."""
    package, _, name = SERVICE.rpartition(".")
    messages = pb.DESCRIPTOR
    file = FileDescriptorProto(
        name=f"pipeline/proto/{package}_service.proto",
        package=package,
        dependency=[messages.name],
        syntax="proto3",
    )
    service = file.service.add(name=name)

    def add(method: str, request: str, response: str, is_stream: bool = False) -> None:
        service.method.add(
            name=method,
            input_type=f".{messages.package}.{request}",
            output_type=f".{messages.package}.{response}",
            client_streaming=is_stream,
            server_streaming=is_stream,
        )

    for request in messages.message_types_by_name:
        method = request.removesuffix("Request")
        if (
            response := f"{method}Response"
        ) in messages.message_types_by_name and method != request:
            add(method, request, response)
    add("ModelStreamInfer", "ModelInferRequest", "ModelStreamInferResponse", is_stream=True)
    return file
