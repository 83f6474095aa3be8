"""B: `process` sleeps 5 ms a call, batches of 8, two workers; argument `adaptive` or `full`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp

CALL_S = 0.005
BATCH_SIZE = 8
CONCURRENCY = 2


class Sleep(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, input_dict),) = input_dicts.items()
        return {"x": np.array([input_dict["x"]])}, False, None, ""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        time.sleep(CALL_S)
        return feed_batch[0], None, ""

    def postprocess(
        self, input_dicts: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"x": str(fetch_data["x"][0])}, None, ""


if __name__ == "__main__":
    config = {
        "concurrency": CONCURRENCY,
        "batch_size": BATCH_SIZE,
        "auto_batching_timeout": 5,
        "batching": sys.argv[1],
    }
    serve("batch", Sleep(name="sleep", input_ops=[RequestOp()]), {"sleep": config})
