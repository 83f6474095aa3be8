"""The methods that gateways may call, each with its name and the kind of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.grpc.inference import SERVICE
from pipeline.frontends.grpc.server import GrpcService
from pipeline.frontends.link.calls import DirectCall, LinkCall, Method, StreamCall, UnaryCall
from pipeline.frontends.link.inference import (
    Form,
    InferenceCall,
    InferenceService,
    JsonForm,
    ProtobufForm,
)
from pipeline.frontends.wire import PipelineWire
from pipeline.proto.slices import Limits

INFERENCE, JSON = "inference", "json"
"""Methods of the HTTP edge: a Request in protobuf, and the body of a POST as it is."""

GRPC_INFERENCE = f"/{SERVICE}/inference"
"""Method of the gRPC edge."""


class LinkMethod(NamedTuple):
    """A method: its name, and how its calls are made.

    `call` is given the connection, the id, the ns that the caller gives, the metadata, and
    `argument`.
    """

    name: str
    call: Any  # the class of a LinkCall, by its last argument
    argument: Any
    is_stream: bool = False

    def make(self, peer: Any, number: int, timeout_ns: int, metadata: bytes) -> LinkCall:
        """Return a call of it."""
        made: LinkCall = self.call(peer, number, timeout_ns, metadata, self.argument)
        return made


def inference_methods(
    begin: Begin,
    wire: PipelineWire,
    offload: Offload,
    limits: Limits,
    takes_trace: bool = False,
    forwarding: HeaderForwarding | None = None,
    is_plain: bool = False,
) -> list[LinkMethod]:
    """Return the methods of an engine that answers a Request with a Response.

    With `takes_trace` it is told the caller's traceparent, with `forwarding` these headers. `wire`
    reads and writes protobuf; long JSON is read and written by `offload`, within `limits`.
    `is_plain`: `begin` takes a PlainRequest where a Request stands.
    """

    def method(name: str, form: Form, is_grpc: bool = False) -> LinkMethod:
        service = InferenceService(begin, form, takes_trace, forwarding, is_grpc)
        return LinkMethod(name, InferenceCall, service)

    protobuf = ProtobufForm(wire)
    return [
        method(INFERENCE, protobuf),
        method(JSON, JsonForm(offload, limits, is_plain)),
        method(GRPC_INFERENCE, protobuf, is_grpc=True),
    ]


def service_methods(services: Sequence[GrpcService], offload: Offload) -> list[LinkMethod]:
    """Return the methods of the gRPC port's services; `offload` joins long messages."""
    found = []
    for service in services:
        for name, unary in service.methods.items():
            direct = service.direct.get(name)
            method = Method(f"/{service.name}/{name}", offload, unary, direct)
            call = UnaryCall if direct is None else DirectCall
            found.append(LinkMethod(method.name, call, method))
        for name, stream in service.streams.items():
            method = Method(f"/{service.name}/{name}", offload, stream)
            found.append(LinkMethod(method.name, StreamCall, method, is_stream=True))
    return found
