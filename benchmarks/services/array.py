"""One Op that answers with an array of float32. Arguments: how many, `text` or `tensors`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.services.common import serve
from pipeline import Op, RequestOp


class Answer(Op):
    """Has its answer ready, so that what is seen is how it travels."""

    array: Any

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {"x": self.array}, False, None, ""


if __name__ == "__main__":
    Answer.array = np.random.default_rng(seed=1).random((1, int(sys.argv[1])), dtype=np.float32)
    answer = Answer(name="answer", input_ops=[RequestOp()])
    answer.set_pack_tensor_format("tensors" in sys.argv)
    serve("array", answer)
