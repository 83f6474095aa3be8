"""E5: a chain of five identity Ops; argument `processes` or none."""

from __future__ import annotations

from benchmarks.services.common import Echo, serve
from pipeline import Op, RequestOp

if __name__ == "__main__":
    last: Op = RequestOp()
    for number in range(5):
        last = Echo(name=f"echo{number}", input_ops=[last])
    serve("chain5", last)
