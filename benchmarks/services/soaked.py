"""The services of `python -m benchmarks.soak`: streams, or sequences, as the argument says."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.services.common import serve
from pipeline import Op, RequestOp

STREAMS, SEQUENCES = "streams", "sequences"
COUNT = 20
PART = "x" * 1000


class Parts(Op):
    """Answers in parts of 1 KB."""

    def process(self, feed_batch: Any, log_id: Any) -> Any:
        for number in range(COUNT):
            yield {"text": PART, "number": str(number)}


class Sums(Op):
    """Adds up the numbers of each sequence, in a state that the server keeps and forgets."""

    def process(self, feed_batch: Any) -> Any:
        total = feed_batch[0]["total"] + int(feed_batch[0]["x"])
        return {"sum": str(total.item()), "next_total": total}


if __name__ == "__main__":
    if sys.argv[1] == STREAMS:
        serve(STREAMS, Parts("parts", RequestOp()), {"parts": {"concurrency": 4}})
    else:
        names = {"input_name": "total", "output_name": "next_total"}
        sequence = {
            "strategy": "oldest",
            "max_candidates": 100,
            "max_idle_ms": 10_000,
            "state": [{**names, "data_type": "INT64", "dims": [1]}],
        }
        op = Sums("sums", RequestOp())
        serve(SEQUENCES, op, {"sums": {"concurrency": 2, "sequence": sequence}})
