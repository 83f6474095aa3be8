"""The pipeline and its Ops as models of the v2 inference protocol, whatever the door."""

from __future__ import annotations

from pipeline.models.catalogue import Models
from pipeline.models.errors import Kind, V2Error, v2_error

__all__ = ["Kind", "Models", "V2Error", "v2_error"]
