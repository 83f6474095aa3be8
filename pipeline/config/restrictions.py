"""`restricted_apis`: parts of the v2 protocol that are for those who know a header's value."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from pipeline.config.fields import Masked

Api = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
"""Part of the v2 protocol, by Triton's name."""


class RestrictionConfig(Struct, frozen=True, kw_only=True):
    """Some parts, and the header that opens them."""

    apis: Annotated[tuple[Api, ...], "Parts of the v2 protocol, each in one entry at most."]
    header: Annotated[str, "Name of the header."]
    value: Annotated[str, Masked(), "What its callers know."]


class RestrictionsConfig(Struct, frozen=True, kw_only=True):
    """`restricted_apis`: what is restricted over HTTP, and what over gRPC."""

    http: Annotated[tuple[RestrictionConfig, ...], "Restrictions of the HTTP port."] = ()
    grpc: Annotated[tuple[RestrictionConfig, ...], "Restrictions of the gRPC port."] = ()
