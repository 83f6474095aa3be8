"""The pipeline and its Ops as models of the v2 inference protocol, by HTTP and gRPC."""

from __future__ import annotations

from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.frontends.v2.repository import ModelRepository

__all__ = ["ModelRepository", "V2Error", "V2Status", "v2_error"]
