"""`paddle_serving_server.pipeline.dag`."""

from typing import Any

from pipeline.dropin.stubs import absent

_ADVICE = "`PipelineServer.set_response_op` builds the graph, `server.executor` runs it"

DAG = absent("DAG", __name__, _ADVICE)
DAGExecutor: Any = absent("DAGExecutor", __name__, _ADVICE)

__all__ = ["DAG", "DAGExecutor"]
