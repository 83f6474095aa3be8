"""Triton's extensions that are not served here, by HTTP path and by method of gRPC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

NO_LOADING = "explicit model load / unload is not allowed if polling is enabled"
NO_REPOSITORY_NAME = "'repository_name' specification is not supported"
_TRACES = (
    "trace settings are not served here: the page at / records traces, dag.use_profile and "
    "OpenTelemetry write them"
)

_MODEL = "/models/[^/]+(?:/versions/[0-9]+)?"
_PATHS = {
    f"/v2(?:{_MODEL})?/trace/setting": _TRACES,
}

UNSUPPORTED_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "TraceSetting": _TRACES,
    }
)
"""Methods of GRPCInferenceService, with what their callers are told."""


def unsupported_path(path: str) -> str:
    """Return the text for callers of a path; "" for one that is of no extension."""
    return next((text for pattern, text in _PATHS.items() if re.fullmatch(pattern, path)), "")
