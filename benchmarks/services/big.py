"""BIG: two identity Ops in a row, answered with tensors; argument `processes` or none."""

from __future__ import annotations

from benchmarks.services.common import Echo, serve
from pipeline import RequestOp

if __name__ == "__main__":
    first = Echo(name="first", input_ops=[RequestOp()])
    second = Echo(name="second", input_ops=[first])
    second.set_pack_tensor_format(True)
    serve("big", second)
