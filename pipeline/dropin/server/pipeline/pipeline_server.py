"""`paddle_serving_server.pipeline.pipeline_server`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pipeline import server
from pipeline.dropin.stubs import stub
from pipeline.engine.graph import Graph, build_graph, names_of
from pipeline.op import Op, ResponseOp

__all__ = ["PipelineServer", "ServerYamlConfChecker"]

_LOGGER = logging.getLogger(__name__)

ServerYamlConfChecker: Any = stub(
    "ServerYamlConfChecker", __name__, "`prepare_server` checks the configuration"
)


class PipelineServer(server.PipelineServer):
    """The library's server; as in Paddle Serving, it leaves out Ops that no ResponseOp reads."""

    def _build_graph(self, response_op: ResponseOp) -> Graph:
        return build_graph(response_op, _warn_of_loose)


def _warn_of_loose(loose: Sequence[Op]) -> None:
    _LOGGER.warning(
        "Ops that do not lead to the ResponseOp are left out: %s. Add them to the input_ops of an "
        "Op that does, or remove them.",
        names_of(loose),
    )
