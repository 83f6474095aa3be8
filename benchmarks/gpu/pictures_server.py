"""A server with one Op on a model of pictures, for the checks: `pictures_server.py CONFIG`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Classify(Op):
    """The best of the model's classes."""

    def preprocess(self, input_dicts: dict[str, Any]) -> dict[str, Any]:
        return {"image": input_dicts["@DAGExecutor"]["image"][None]}

    def postprocess(self, input_dicts: dict[str, Any], fetch_data: dict[str, Any]) -> Any:
        (scores,) = fetch_data.values()
        return {"label": np.array([scores.argmax()])}


def main() -> None:
    server = PipelineServer("pictures")
    server.set_response_op(ResponseOp(Classify("classify", RequestOp())))
    server.prepare_server(sys.argv[1])
    server.run_server()


if __name__ == "__main__":
    main()
