"""`python -m pipeline.serve`: one model as a service over brpc, gRPC and HTTP on one port."""

from __future__ import annotations

import importlib
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a model as the command line says; return the exit status."""
    status: int = importlib.import_module("pipeline.serve.__main__").main(arguments)
    return status
