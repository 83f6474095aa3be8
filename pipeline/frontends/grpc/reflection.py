"""gRPC's server reflection, for tools that know no .proto file."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha import reflection_pb2 as pb

from pipeline.frontends.grpc.guarded import add_methods
from pipeline.proto import inference_v2_pb2
from pipeline.proto.v2.service import service_file


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Have a server describe these services, and reflection itself."""
    versions = reflection.SERVICE_NAME, reflection.SERVICE_NAME.replace("v1alpha", "v1")
    servicer = reflection.aio.ReflectionServicer((*services, *versions), pool=_Descriptors())
    asked, answered = pb.ServerReflectionRequest, pb.ServerReflectionResponse
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo, asked.FromString, answered.SerializeToString
    )
    for name in versions:  # with the same messages
        add_methods(server, name, {"ServerReflectionInfo": method})


@functools.cache
def _more() -> DescriptorPool:
    """Return the descriptors of the v2 service and of reflection's v1; few servers need them."""
    pool = DescriptorPool()
    pool.AddSerializedFile(inference_v2_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(service_file().SerializeToString())
    alpha = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(alpha)
    text = text_format.MessageToString(alpha).replace("v1alpha", "v1")
    pool.AddSerializedFile(text_format.Parse(text, FileDescriptorProto()).SerializeToString())
    return pool


class _Descriptors:
    """The descriptors of the process, and `_more` that are not among them."""

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """Return the file of a symbol. Raises KeyError.

        A method is in the file of its service: protobuf's pools do not find methods by name.
        """
        name, _, method = symbol.rpartition(".")
        for pool in (_more(), Default()):
            with contextlib.suppress(KeyError):
                return pool.FindFileContainingSymbol(symbol)
            with contextlib.suppress(KeyError):
                service = pool.FindServiceByName(name)
                if method in service.methods_by_name:
                    return service.file
        raise KeyError(symbol)

    def FindFileByName(self, name: str) -> FileDescriptor:
        """Return a file. Raises KeyError."""
        try:
            return _more().FindFileByName(name)
        except KeyError:
            return Default().FindFileByName(name)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the process's pool: extensions are there only."""
        return getattr(Default(), name)
