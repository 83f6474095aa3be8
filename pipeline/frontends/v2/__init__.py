"""The v2 inference protocol over HTTP and gRPC, with the pipeline and its Ops as models."""

from __future__ import annotations

from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.frontends.v2.repository import ModelRepository

__all__ = ["ModelRepository", "V2Error", "V2Status", "v2_error"]
