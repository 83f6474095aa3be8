"""The methods that gateways may call, each with its name and the class of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.grpc.inference import SERVICE
from pipeline.frontends.grpc.server import GrpcService
from pipeline.frontends.link.calls import DirectCall, Method, StreamCall, UnaryCall
from pipeline.frontends.link.inference import InferenceCall, InferenceService, names_of, no_names
from pipeline.frontends.wire import JsonWire, PipelineWire, Wire

INFERENCE, JSON = "inference", "json"
"""Methods of the HTTP edge: a Request in protobuf, and the body of a POST unchanged."""

GRPC_INFERENCE = f"/{SERVICE}/inference"
"""Method of the gRPC edge."""


class LinkMethod(NamedTuple):
    """A method: its name, and how its calls are made.

    `call` gets the connection, the id, the client's timeout in ns, the metadata, and `argument`.
    """

    name: str
    call: Any  # the class of a LinkCall, whose last parameter is `argument`
    argument: Any
    is_stream: bool = False


def inference_methods(
    begin: Begin,
    wire: PipelineWire,
    json_wire: JsonWire,
    takes_trace: bool = False,
    forwarding: HeaderForwarding | None = None,
) -> list[LinkMethod]:
    """Return the methods of an engine that answers a Request with a Response.

    With `takes_trace` it receives the client's traceparent, with `forwarding` these headers. The
    wires read and write protobuf, and JSON.
    """

    def method(name: str, wire: Wire, names: Any = no_names, is_grpc: bool = False) -> LinkMethod:
        service = InferenceService(begin, wire, names, takes_trace, forwarding, is_grpc)
        return LinkMethod(name, InferenceCall, service)

    return [
        method(INFERENCE, wire),
        method(JSON, json_wire, names_of),
        method(GRPC_INFERENCE, wire, is_grpc=True),
    ]


def service_methods(services: Sequence[GrpcService], offload: Offload) -> list[LinkMethod]:
    """Return the methods of the gRPC port's services; `offload` joins long messages."""
    methods = []
    for service in services:
        for name, unary in service.methods.items():
            direct = service.direct.get(name)
            method = Method(f"/{service.name}/{name}", offload, unary, direct)
            call = UnaryCall if direct is None else DirectCall
            methods.append(LinkMethod(method.name, call, method))
        for name, stream in service.streams.items():
            method = Method(f"/{service.name}/{name}", offload, stream)
            methods.append(LinkMethod(method.name, StreamCall, method, is_stream=True))
    return methods
