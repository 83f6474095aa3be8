"""`paddle_serving_server.pipeline`: Ops, server and client, and the names of its small modules.

`import_hook.COUNTERPARTS` leads `analyse`, `dag`, `error_catch`, `logger` and `operator` here.
"""

import os
import sys
from types import ModuleType
from typing import Any

from pipeline.client import PipelineClient
from pipeline.dropin.local_service_handler import LocalServiceHandler
from pipeline.dropin.names import (
    ChannelData,
    CustomException,
    CustomExceptionCode,
    ErrorCatch,
    ParamChecker,
    ProductErrCode,
)
from pipeline.dropin.server.pipeline.pipeline_server import PipelineServer
from pipeline.dropin.stubs import stub
from pipeline.observe.analysis.analyst import Analyst, OpAnalyst
from pipeline.op import Op, RequestOp, ResponseOp

_GRAPH = "`PipelineServer.set_response_op` builds the graph, `server.executor` runs it"

DAG: Any = stub("DAG", __name__, _GRAPH)
DAGExecutor: Any = stub("DAGExecutor", __name__, _GRAPH)
ParamVerify: Any = stub("ParamVerify", __name__, "the library checks its own parameters")
VirtualOp: Any = stub("VirtualOp", __name__, "edges may skip levels without it")
log_dir: str = os.path.join(os.environ.get("SERVING_LOG_PATH", ""), "PipelineServingLogs")
logger: ModuleType = sys.modules[__name__]  # scripts read its `log_dir`

__all__ = [
    "DAG",
    "Analyst",
    "ChannelData",
    "CustomException",
    "CustomExceptionCode",
    "DAGExecutor",
    "ErrorCatch",
    "LocalServiceHandler",
    "Op",
    "OpAnalyst",
    "ParamChecker",
    "ParamVerify",
    "PipelineClient",
    "PipelineServer",
    "ProductErrCode",
    "RequestOp",
    "ResponseOp",
    "VirtualOp",
    "log_dir",
    "logger",
]
