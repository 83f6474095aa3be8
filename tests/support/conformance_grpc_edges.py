"""The edges that terminate gRPC, for the conformance table: the server itself, or its gateway."""

from __future__ import annotations

import enum
from typing import Any

import pytest


class Edge(enum.Enum):
    """Who terminates gRPC."""

    EMBEDDED = "embedded"
    GATEWAY = "gateway"

    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """The server's configuration for it."""
        if self is Edge.GATEWAY:
            request.getfixturevalue("gateway_binary")
        return {"edge": self.value}


def edges() -> list[Any]:
    """The parameters of a fixture."""
    return [pytest.param(edge, id=edge.value) for edge in Edge]
