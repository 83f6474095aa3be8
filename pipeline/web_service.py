"""WebService: a PipelineServer for scripts that only define their last Op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import GraphError
from pipeline.op import Op, RequestOp, ResponseOp
from pipeline.server import PipelineServer

__all__ = ["Op", "WebService"]


class WebService:
    """Derive from it, override `get_pipeline_response`, prepare and run.

    Args:
        name: the service's name, first part of the URL.
    """

    def __init__(self, name: str = "default_service") -> None:
        self.name = name
        self._server = PipelineServer(name)

    def get_pipeline_response(self, read_op: RequestOp) -> Op | None:
        """Connect the Ops after `read_op` and return the last one."""
        return None

    def get_request_op(self) -> RequestOp:
        """Return the RequestOp; override it to use your own."""
        return RequestOp()

    def get_response_op(self, last_op: Op) -> ResponseOp:
        """Return the ResponseOp after `last_op`; override it to use your own."""
        return ResponseOp(input_ops=[last_op])

    def prepare_pipeline_config(
        self, yml_file: str | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Build the graph and read the configuration; see `PipelineServer.prepare_server`."""
        last_op = self.get_pipeline_response(self.get_request_op())
        if not isinstance(last_op, Op):
            raise GraphError(
                f"{type(self).__name__}.get_pipeline_response must return the last Op of the "
                f"pipeline, found {last_op!r}."
            )
        self._server.set_response_op(self.get_response_op(last_op))
        self._server.prepare_server(yml_file, yml_dict)

    prepare_server = prepare_pipeline_config

    def run_service(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._server.run_server()
