"""`paddle_serving_server.pipeline.operator`."""

from typing import Any

from pipeline.dropin.stubs import stub
from pipeline.op import Op, RequestOp, ResponseOp

VirtualOp: Any = stub("VirtualOp", __name__, "edges may skip levels without it")

__all__ = ["Op", "RequestOp", "ResponseOp", "VirtualOp"]
