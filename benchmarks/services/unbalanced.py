"""U: three Ops, one slow for want of workers, one for want of batches; arguments: a JSON config.

`rank` waits 6 ms for each request, as for a data base. `model` waits 10 ms for a batch and 0.2 ms
for each request in it, as for a card. `words` is quick. The argument is what stands under `op:` of
config.yml; a second one, `profile`, has the server write PROFILE lines.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.services.common import Echo
from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

NAME = "unbalanced"
PROFILE = "profile"
OPS = ("words", "rank", "model")

_LOOK_UP_S = 0.006
_CALL_S = 0.010
_ROW_S = 0.0002


class Rank(Echo):
    """Looks something up for each request."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        time.sleep(_LOOK_UP_S)
        return super().preprocess(input_dicts, data_id, log_id)


class Model(Op):
    """Takes a batch nearly as quickly as one request."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return {"x": np.array([input_dict["x"]])}, False, None, ""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        time.sleep(_CALL_S + _ROW_S * len(feed_batch[0]["x"]))
        return feed_batch[0], None, ""

    def postprocess(
        self, input_dicts: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"x": str(fetch_data["x"][0])}, None, ""


def _serve(op_config: dict[str, Any], use_profile: bool) -> None:
    last: Op = RequestOp()
    for name, kind in zip(OPS, (Echo, Rank, Model), strict=True):
        last = kind(name=name, input_ops=[last])
    server = PipelineServer(name=NAME)
    server.set_response_op(ResponseOp(input_ops=[last]))
    server.prepare_server(
        yml_dict={
            "http_port": HTTP_PORT,
            "rpc_port": GRPC_PORT,
            "dag": {"use_profile": use_profile},
            "op": op_config,
        }
    )
    server.run_server()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]), PROFILE in sys.argv[2:])
