"""LARGE: an Op that passes on what it gets, or answers with as many numbers as it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Give(Op):
    """Answers `count` numbers of `dtype`, if it is asked for any; else with what came."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, request),) = input_dicts.items()
        if "count" not in request:
            return {name: value for name, value in request.items() if name != "drop"}
        count = int(request["count"])
        return {"x": np.full(count, 7, request["dtype"])}


class Take(Give):
    """Answers with how many values came: what is measured is their way in."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, request),) = input_dicts.items()
        if "drop" in request or len(request) > 1000:
            return {"taken": str(len(request))}
        return super().preprocess(input_dicts, data_id, log_id)


if __name__ == "__main__":
    serve("large", Take(name="take", input_ops=[RequestOp()]), {"take": {"concurrency": 4}})
