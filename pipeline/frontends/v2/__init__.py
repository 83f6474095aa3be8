"""The pipeline and its Ops as models of the v2 inference protocol, whatever the door."""

from __future__ import annotations

from pipeline.frontends.v2.errors import Kind, V2Error, v2_error
from pipeline.frontends.v2.repository import Models

__all__ = ["Kind", "Models", "V2Error", "v2_error"]
