"""What is overloaded: Ops that sleep. Argument: `threads`, `batches` or `diamond`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Sleep(Op):
    """Keeps a batch for so many seconds, and answers with what came."""

    def __init__(self, name: str, input_ops: Any, seconds: float) -> None:
        super().__init__(name, input_ops)
        self.seconds = seconds

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        first = next(iter(input_dicts.values()))
        return {"x": np.array([first["x"]])}

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        time.sleep(self.seconds)
        return feed_batch[0]

    def postprocess(
        self, input_dicts: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"x": str(fetch_data["x"][0])}


def graph(kind: str) -> tuple[Op, dict[str, Any]]:
    """The last Op, and the configuration of all; each does some 100 requests a second."""
    read = RequestOp()
    if kind == "threads":
        return Sleep("a", read, 0.04), {"a": {"concurrency": 4}}
    if kind == "batches":
        op = {"concurrency": 2, "batch_size": 8, "auto_batching_timeout": 20}
        return Sleep("a", read, 0.16), {"a": op}
    first = Sleep("first", read, 0.02)
    last = Sleep("last", [Sleep("left", first, 0.02), Sleep("right", first, 0.02)], 0.02)
    ops = {name: {"concurrency": 4} for name in ("first", "right", "last")}
    return last, ops | {"left": {"concurrency": 2}}


if __name__ == "__main__":
    serve("overload", *graph(sys.argv[1]))
