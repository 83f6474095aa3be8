"""`paddle_serving_server.pipeline.operator`."""

from pipeline.dropin.absent import absent
from pipeline.op import Op, RequestOp, ResponseOp

VirtualOp = absent("VirtualOp", __name__, "edges may skip levels without it")

__all__ = ["Op", "RequestOp", "ResponseOp", "VirtualOp"]
