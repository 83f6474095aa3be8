"""An Op that sleeps; arguments: its milliseconds, how many workers it has."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Sleep(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        time.sleep(float(sys.argv[1]) / 1000)
        return input_dicts["@DAGExecutor"], False, None, ""


if __name__ == "__main__":
    serve(
        "sleep",
        Sleep(name="sleep", input_ops=[RequestOp()]),
        {"sleep": {"concurrency": int(sys.argv[2])}},
    )
