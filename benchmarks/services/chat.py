"""A chat whose model says a word for each of its requests at a steady rate: `batching: iterative`.

Arguments: steps a second, 0 for as many as there can be; words of an answer.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Chat(Op):
    """Says "word " so many times."""

    def init_op(self) -> None:
        rate, self.words = map(int, sys.argv[1:3])
        self.step_s = 1 / rate if rate else 0.0
        self.next_s = time.monotonic()

    def preprocess(self, input_dicts: Any, *, context: Any) -> Any:
        return {"words": np.array([self.words])}

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        if self.step_s:
            now_s = time.monotonic()
            self.next_s = max(self.next_s + self.step_s, now_s)
            time.sleep(self.next_s - now_s)
        for request in context:
            request.state["said"] = request.state.get("said", 0) + 1
        written = np.array([request.state["said"] for request in context])
        return {"said": written, "done": written >= feed_batch[0]["words"]}

    def postprocess(self, input_dicts: Any, fetch_dict: Any) -> Any:
        return {"text": "word "}


if __name__ == "__main__":
    serve(
        "chat",
        Chat("chat", RequestOp()),
        {"chat": {"batching": "iterative", "batch_size": 512}},
        {"frontends": {"openai": None}, "worker_num": 512},
    )
