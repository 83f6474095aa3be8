"""`paddle_serving_server.pipeline`: Ops, server and client."""

from pipeline.client import PipelineClient
from pipeline.dropin import names as compat
from pipeline.dropin.local_service_handler import LocalServiceHandler
from pipeline.dropin.server.pipeline import logger
from pipeline.dropin.server.pipeline.pipeline_server import PipelineServer
from pipeline.observe.analysis.analyst import Analyst
from pipeline.op import Op, RequestOp, ResponseOp

ChannelData = compat.ChannelData

__all__ = [
    "Analyst",
    "ChannelData",
    "LocalServiceHandler",
    "Op",
    "PipelineClient",
    "PipelineServer",
    "RequestOp",
    "ResponseOp",
    "logger",
]
