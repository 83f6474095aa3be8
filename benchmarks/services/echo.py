"""E: one identity Op; argument `processes` or none."""

from __future__ import annotations

from benchmarks.services.common import Echo, serve
from pipeline import RequestOp

if __name__ == "__main__":
    serve("echo", Echo(name="echo", input_ops=[RequestOp()]))
