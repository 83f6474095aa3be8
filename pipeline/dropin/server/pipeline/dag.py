"""`paddle_serving_server.pipeline.dag`."""

from typing import Any

from pipeline.dropin.stubs import stub

_ADVICE = "`PipelineServer.set_response_op` builds the graph, `server.executor` runs it"

DAG = stub("DAG", __name__, _ADVICE)
DAGExecutor: Any = stub("DAGExecutor", __name__, _ADVICE)

__all__ = ["DAG", "DAGExecutor"]
