"""The service of `python -m benchmarks.faults`: one Op; `FAULTED` has more keys of config.yml.

The Op computes in processes, or asks such a server, if the keys name one.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from benchmarks.services.ports import GRPC_PORT, HTTP_PORT
from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Sums(Op):
    """Answers with the request's number, and the sum of as many numbers as it asks for."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fed,) = input_dicts.values()
        return {"number": np.array([int(fed["number"])]), "x": np.ones(int(fed["size"]), np.int64)}

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        return {"number": str(feed["number"][0]), "sum": str(feed["x"].sum())}


class Asks(Op):
    """Asks a server of `Sums`."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fed,) = input_dicts.values()
        return {"number": fed["number"], "size": fed["size"]}


if __name__ == "__main__":
    more = json.loads(os.environ.get("FAULTED", "{}"))
    op = Asks if "client_type" in more.get("op", {}).get("sums", {}) else Sums
    server = PipelineServer("faulted")
    server.set_response_op(ResponseOp(op("sums", RequestOp())))
    server.prepare_server(
        yml_dict={
            "rpc_port": GRPC_PORT,
            "http_port": HTTP_PORT,
            "timeout": 8000,
            "dag": {"is_thread_op": True},
            "op": {"sums": {"workers": "process", "concurrency": 2, "retry": 3, "timeout": 2000}},
            **more,
        }
    )
    server.run_server()
