"""The overloaded service: Ops that sleep.

Argument: `threads`, `batches` or `diamond`; or `cascade`, `kept` or `priorities`, which get two
kinds of requests.
"""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar

import numpy as np

from benchmarks.services.common import serve
from pipeline import Answer, Op, RequestOp, Tensor


class Sleep(Op):
    """Sleeps for some seconds, and answers with its input."""

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


class Gate(Op):
    """Answers quick requests at once, and passes the others on."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fed,) = input_dicts.values()
        return Answer(fed) if fed["x"] == "quick" else fed


class SleepText(Op):
    """Sleeps for 40 ms, and answers with its input."""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        time.sleep(0.04)
        return feed_batch[0]


class SleepTensor(Op):
    """The same for the v2 API, where requests have a priority."""

    input_tensors: ClassVar[list[Tensor]] = [Tensor("x", "FP32", [-1, 1])]
    output_tensors: ClassVar[list[Tensor]] = [Tensor("y", "FP32", [-1, 1])]

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        time.sleep(0.04)
        return {"y": feed_batch[0]["x"]}


def mixed(kind: str) -> tuple[Op, dict[str, Any], dict[str, Any]]:
    """The same for kinds with two kinds of requests, and the service's keys."""
    read, four = RequestOp(), {"concurrency": 4}
    if kind == "cascade":
        slow = SleepText("slow", Gate("gate", read))
        return slow, {"slow": four, "gate": {"concurrency": 2}}, {}
    if kind == "kept":
        keys = {"response_cache": True, "cache": {"local": {"size": 1 << 24}}}
        return SleepText("slow", read), {"slow": four}, keys
    levels = {"priority_levels": 2, "default_priority_level": 2}
    op = {**four, "batching": "dynamic", "dynamic_batching": levels}
    return SleepTensor("slow", read), {"slow": op}, {}


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
    is_mixed = sys.argv[1] in ("cascade", "kept", "priorities")
    serve("overload", *(mixed if is_mixed else graph)(sys.argv[1]))
