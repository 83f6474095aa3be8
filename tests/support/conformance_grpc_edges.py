"""The edges that terminate gRPC, for the conformance table: the server itself, or a gateway."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

import pytest
from conformance_gateway import PATIENT, gateway_before
from served import free_port

from pipeline import PipelineServer


class Edge(enum.Enum):
    """The program that terminates gRPC."""

    EMBEDDED = "embedded"
    GATEWAY = "gateway"  # the server's child
    FLEET = "fleet"  # a gateway before servers, of which there is one

    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """The server's configuration for it."""
        if self is Edge.GATEWAY:
            request.getfixturevalue("gateway_binary")
        return {"edge": "embedded" if self is Edge.FLEET else self.value}

    @contextlib.contextmanager
    def port(self, server: PipelineServer, request: pytest.FixtureRequest) -> Iterator[int]:
        """Where it takes gRPC for a server."""
        if self is not Edge.FLEET:
            assert server.rpc_port is not None
            yield server.rpc_port
            return
        binary, port = request.getfixturevalue("gateway_binary"), free_port()
        flags = ("--grpc-listen", f"127.0.0.1:{port}", *PATIENT)
        with gateway_before(binary, f"127.0.0.1:{server.rpc_port}", flags=flags) as gateway:
            gateway.wait_until_ready()
            yield port


def edges() -> list[Any]:
    """The parameters of a fixture, for what takes the server's own edge."""
    return [pytest.param(edge, id=edge.value) for edge in (Edge.EMBEDDED, Edge.GATEWAY)]
